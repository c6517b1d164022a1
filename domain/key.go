package domain

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"sync"
)

// maxKey is the longest workspace key's readable part, in bytes.
const maxKey = 40

var plainKey = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Z][A-Z0-9_]*-[0-9]+$`) })

// WorkspaceKey returns the name of a ticket's worktree folder and the last part of its branch. It is the identifier
// itself where that is plain (KEY-n, at most 40 bytes); otherwise a readable rest and a hash, so that two identifiers
// never share a key and no key leaves its folder. Only generated keys end in -x and 16 hex digits.
func WorkspaceKey(identifier string) string {
	if len(identifier) <= maxKey && plainKey().MatchString(identifier) {
		return identifier
	}
	var b strings.Builder
	leading := true
	for _, r := range identifier {
		switch {
		case r == '.' || r == '-':
			if leading {
				r = '_'
			}
		case r >= 'A' && r <= 'Z', r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '_':
			leading = false
		default:
			r, leading = '_', false
		}
		b.WriteRune(r)
	}
	s := cmp.Or(b.String(), "_") // a folder named like an option would be trouble
	for strings.Contains(s, "..") {
		s = strings.ReplaceAll(s, "..", "_")
	}
	s = s[:min(len(s), maxKey)]
	sum := sha256.Sum256([]byte(identifier))
	return s + "-x" + hex.EncodeToString(sum[:8])
}

// maxSlug is the longest slug, in bytes.
const maxSlug = 32

var slugForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`) })

// CheckSlug returns an error unless s is lower-case words joined by single dashes, first a letter, at most 32 bytes.
func CheckSlug(s string) error {
	if len(s) > maxSlug || !slugForm().MatchString(s) {
		return fmt.Errorf("%q is no slug: use lower-case words joined by single dashes, first a letter, at most %d bytes", s, maxSlug)
	}
	return nil
}

// Slug returns the slug of a name. A name that had to be changed, cut or that is taken gets a dash and 6 hex digits
// of its SHA-256, so that two names never share a slug by accident.
func Slug(name string, taken func(string) bool) string {
	return SlugFor(name, name, taken)
}

// SlugFor is Slug with the digits of another text, which names of the same slug do not share.
func SlugFor(name, text string, taken func(string) bool) string {
	if CheckSlug(name) == nil && (taken == nil || !taken(name)) {
		return name
	}
	var b strings.Builder
	for _, r := range strings.ToLower(name) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
		} else if b.Len() > 0 && !strings.HasSuffix(b.String(), "-") {
			b.WriteByte('-')
		}
	}
	s := strings.Trim(b.String(), "-")
	if s == "" || s[0] < 'a' {
		s = strings.Trim("p-"+s, "-")
	}
	const suffix = 7
	s = strings.TrimRight(s[:min(len(s), maxSlug-suffix)], "-")
	for salt := text; ; salt += "+" {
		sum := sha256.Sum256([]byte(salt))
		out := s + "-" + hex.EncodeToString(sum[:3])
		if taken == nil || !taken(out) {
			return out
		}
	}
}
