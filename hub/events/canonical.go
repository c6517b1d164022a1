package events

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gowebpki/jcs"
)

// canonical returns the RFC 8785 form of what encoding/json has written. Most events are plain, and of these only the
// members have to be sorted; everything else is the library's, which takes many times as long.
func canonical(raw []byte) ([]byte, error) {
	p := plain{in: raw, out: make([]byte, 0, len(raw))}
	if utf8.Valid(raw) && p.value() && len(p.in) == 0 {
		return p.out, nil
	}
	return jcs.Transform(raw)
}

// plain writes JSON in its canonical form as long as it is plain: without white space, without names that are escaped or
// not ASCII, without strings that could be escaped otherwise, without numbers that could be written otherwise. Its methods
// return false where it is not.
type plain struct{ in, out []byte }

func (p *plain) value() bool {
	if len(p.in) == 0 {
		return false
	}
	switch c := p.in[0]; {
	case c == '{':
		return p.object()
	case c == '[':
		return p.list()
	case c == '"':
		return p.copy(text(p.in))
	case c >= '0' && c <= '9' || c == '-':
		return p.copy(whole(p.in))
	}
	for _, word := range []string{"null", "true", "false"} {
		if bytes.HasPrefix(p.in, []byte(word)) {
			return p.copy(len(word))
		}
	}
	return false
}

// copy takes over n bytes as they are; 0 means that they are not plain.
func (p *plain) copy(n int) bool {
	p.out, p.in = append(p.out, p.in[:n]...), p.in[n:]
	return n > 0
}

func (p *plain) next(c byte) bool {
	ok := len(p.in) > 0 && p.in[0] == c
	if ok {
		p.in = p.in[1:]
	}
	return ok
}

func (p *plain) list() bool {
	p.next('[')
	p.out = append(p.out, '[')
	if p.next(']') {
		p.out = append(p.out, ']')
		return true
	}
	for p.value() {
		if p.next(']') {
			p.out = append(p.out, ']')
			return true
		}
		if !p.next(',') {
			return false
		}
		p.out = append(p.out, ',')
	}
	return false
}

// member is one member of an object, in its canonical form.
type member struct{ name, value []byte }

func (p *plain) object() bool {
	p.next('{')
	begin, members := len(p.out), make([]member, 0, 32)
	for more := !p.next('}'); more; more = !p.next('}') {
		if len(members) > 0 && !p.next(',') {
			return false
		}
		n := text(p.in)
		name := p.in[:n]
		if n == 0 || bytes.ContainsFunc(name, func(r rune) bool { return r == '\\' || r >= utf8.RuneSelf }) {
			return false
		}
		p.in = p.in[n:]
		at := len(p.out)
		if !p.next(':') || !p.value() {
			return false
		}
		members = append(members, member{name, p.out[at:]})
	}
	// Quoted names sort like bare ones, but for one that is the beginning of another: '"' is not the smallest character.
	slices.SortFunc(members, func(a, b member) int {
		return bytes.Compare(a.name[1:len(a.name)-1], b.name[1:len(b.name)-1])
	})
	sorted := make([]byte, 0, len(p.out)-begin+32*len(members))
	sorted = append(sorted, '{')
	for i, m := range members {
		if i > 0 {
			if bytes.Equal(m.name, members[i-1].name) {
				return false // the library says what is wrong with that
			}
			sorted = append(sorted, ',')
		}
		sorted = append(append(append(sorted, m.name...), ':'), m.value...)
	}
	p.out = append(append(p.out[:begin], sorted...), '}')
	return true
}

// text returns how long the plain string at the beginning of b is, with its quotes.
func text(b []byte) int {
	if len(b) == 0 || b[0] != '"' {
		return 0
	}
	for i := 1; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c < ' ':
			return 0
		case c == '\\':
			i++
			if i == len(b) || !strings.ContainsRune(`"\bfnrt`, rune(b[i])) {
				return 0
			}
		}
	}
	return 0
}

// whole returns how long the plain number at the beginning of b is: a whole one that a float64 holds exactly.
func whole(b []byte) int {
	i := 0
	if b[0] == '-' {
		i++
	}
	first := i
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	switch {
	case i == first, i-first > 15, b[first] == '0' && (i > 1): // none, too many, or one that begins with or is -0
		return 0
	case i < len(b) && strings.ContainsRune(".eE", rune(b[i])):
		return 0
	}
	return i
}
