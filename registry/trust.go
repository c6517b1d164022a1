package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Trust is trust.toml: what a person has allowed a checkout to do on this machine. Nothing that a repository brings can
// write it.
//
//	schema = 1
//
//	[[hooks]]                    # hooks with this hash may be run
//	checkout = "/home/ada/shop"
//	sha256 = "…"
//
//	[[all]]                      # agents may be given permissions = "all"
//	checkout = "/home/ada/shop"
type Trust struct {
	Hooks []TrustedHooks
	All   []string // checkouts
}

// TrustedHooks are hooks that a person has looked at.
type TrustedHooks struct{ Checkout, SHA256 string }

var hexSHA256 = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}$`) })

func checkSHA256(s string) error {
	if !hexSHA256().MatchString(s) {
		return fmt.Errorf("%q is no SHA-256 in hex", s)
	}
	return nil
}

func checkCheckout(s string) error {
	if !filepath.IsAbs(s) || filepath.Clean(s) != s {
		return fmt.Errorf("%q is no clean absolute path", s)
	}
	return nil
}

// ParseTrust reads trust.toml; name is the file in errors.
func ParseTrust(name string, data []byte) (Trust, error) {
	t, err := parse(name, data)
	if err != nil {
		return Trust{}, err
	}
	var tr Trust
	t.integer("schema", Schema, Schema, Schema)
	t.list("hooks", func(el *table) {
		tr.Hooks = append(tr.Hooks, TrustedHooks{el.required("checkout", checkCheckout), el.required("sha256", checkSHA256)})
	})
	t.list("all", func(el *table) { tr.All = append(tr.All, el.required("checkout", checkCheckout)) })
	t.done()
	if err := t.doc.finish(); err != nil {
		return Trust{}, err
	}
	return tr, nil
}

// required is str for a key that must be there.
func (t *table) required(key string, check func(string) error) string {
	if !t.has(key) {
		t.fail(key, "is missing")
	}
	return t.str(key, "", check)
}

func (tr Trust) format() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# What a person has allowed checkouts to do here. Written by gaia; see gaia conductor trust.\nschema = %d\n", Schema)
	for _, h := range tr.Hooks {
		fmt.Fprintf(&b, "\n[[hooks]]\ncheckout = %s\nsha256 = %s\n", quote(h.Checkout), quote(h.SHA256))
	}
	for _, c := range tr.All {
		fmt.Fprintf(&b, "\n[[all]]\ncheckout = %s\n", quote(c))
	}
	return []byte(b.String())
}

// LoadTrust reads trust.toml. One that does not exist trusts nothing; one that is damaged is an error.
func (h Home) LoadTrust() (Trust, error) {
	path := h.TrustFile()
	data, err := h.load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Trust{}, nil
	}
	if err != nil {
		return Trust{}, fmt.Errorf("reading what is trusted: %w", err)
	}
	return ParseTrust(path, data)
}

// Trusted reports whether hooks with this hash may be run for the checkout. The empty hash is that of no hooks.
func (h Home) Trusted(checkout, sha string) (bool, error) {
	if sha == "" {
		return true, nil
	}
	checkout, err := FindCheckout(checkout)
	if err != nil {
		return false, err
	}
	tr, err := h.LoadTrust()
	return err == nil && slices.Contains(tr.Hooks, TrustedHooks{checkout, sha}), err
}

// Trust allows hooks with this hash for the checkout. Earlier hashes stay trusted: an older commit may be a run's base.
func (h Home) Trust(ctx context.Context, checkout, sha string) error {
	if sha == "" {
		return nil
	}
	if err := checkSHA256(sha); err != nil {
		return err
	}
	return h.changeTrust(ctx, checkout, func(tr *Trust, checkout string) {
		if e := (TrustedHooks{checkout, sha}); !slices.Contains(tr.Hooks, e) {
			tr.Hooks = append(tr.Hooks, e)
		}
	})
}

// TrustedAll reports whether agents of the checkout may be given all permissions.
func (h Home) TrustedAll(checkout string) (bool, error) {
	checkout, err := FindCheckout(checkout)
	if err != nil {
		return false, err
	}
	tr, err := h.LoadTrust()
	return err == nil && slices.Contains(tr.All, checkout), err
}

// TrustAll allows agents of the checkout to be given all permissions.
func (h Home) TrustAll(ctx context.Context, checkout string) error {
	return h.changeTrust(ctx, checkout, func(tr *Trust, checkout string) {
		if !slices.Contains(tr.All, checkout) {
			tr.All = append(tr.All, checkout)
		}
	})
}

func (h Home) changeTrust(ctx context.Context, checkout string, fn func(*Trust, string)) error {
	checkout, err := FindCheckout(checkout)
	if err != nil {
		return err
	}
	if !utf8.ValidString(checkout) {
		return fmt.Errorf("the path %q is not UTF-8 and cannot be written to %s", checkout, h.TrustFile())
	}
	return h.locked(ctx, h.TrustFile(), func() error {
		tr, err := h.LoadTrust()
		if err != nil {
			return err
		}
		fn(&tr, checkout)
		return replace(h.TrustFile(), tr.format())
	})
}

// Permissions returns what an agent may do in a checkout: want, unless that is all and the checkout has no entry in
// trust.toml; then it is edits, and refused is true.
func (h Home) Permissions(checkout, want string) (granted string, refused bool, err error) {
	if want != PermissionsAll {
		return want, false, nil
	}
	ok, err := h.TrustedAll(checkout)
	if err != nil || !ok {
		return PermissionsEdits, true, err
	}
	return PermissionsAll, false, nil
}
