package render

import (
	"bytes"
	"io"
	"unicode/utf8"
)

// Plain returns a writer that passes on what a terminal program has printed as text: without what moves the cursor, sets
// the title or asks the terminal something and, unless colour is set, without colours. What was drawn over stays, in the
// order in which it was printed.
func Plain(w io.Writer, colour bool) io.Writer { return &plain{w: w, colour: colour} }

type plain struct {
	w      io.Writer
	colour bool
	state  byte   // 0 in text, ESC after an escape, '[' in a control sequence, ']' in a string, '\\' after an escape in one
	held   []byte // of a control sequence
	part   []byte // of a character that is not complete yet
}

const esc = 0x1b

// maxSequence bounds a control sequence; a longer one is none.
const maxSequence = 64

func (p *plain) Write(b []byte) (int, error) {
	n := len(b)
	in := b
	if len(p.part) > 0 {
		in, p.part = append(p.part, b...), nil
	}
	var out []byte
	for len(in) > 0 {
		if !utf8.FullRune(in) {
			p.part = bytes.Clone(in)
			break
		}
		r, size := utf8.DecodeRune(in)
		out = p.step(out, r, in[:size])
		in = in[size:]
	}
	if len(out) > 0 {
		if _, err := p.w.Write(out); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// step takes one character.
func (p *plain) step(out []byte, r rune, raw []byte) []byte {
	switch p.state {
	case esc:
		switch {
		case r == '[':
			p.state, p.held = '[', p.held[:0]
		case r == ']' || r == 'P' || r == 'X' || r == '^' || r == '_':
			p.state = ']'
		case r >= ' ' && r <= '/': // takes one more
		default:
			p.state = 0
		}
		return out
	case '[':
		switch {
		case r >= '@' && r <= '~':
			if r == 'm' && p.colour {
				out = append(append(append(out, esc, '['), p.held...), 'm')
			}
			p.state, p.held = 0, nil
		case r < ' ' || r > '~' || len(p.held) >= maxSequence: // broken off
			p.state, p.held = 0, nil
			if r == esc {
				p.state = esc
			}
		default:
			p.held = append(p.held, raw...)
		}
		return out
	case ']':
		switch r {
		case '\a', 0x9c:
			p.state = 0
		case esc:
			p.state = '\\'
		}
		return out
	case '\\':
		if p.state = ']'; r == '\\' {
			p.state = 0
		}
		return out
	}
	switch {
	case r == esc:
		p.state = esc
	case r == 0x9b:
		p.state = '['
	case r == 0x9d || r == 0x90 || r == 0x98 || r == 0x9e || r == 0x9f:
		p.state = ']'
	case r == '\n' || r == '\t':
		out = append(out, byte(r))
	case unsafe(r) || r == utf8.RuneError && len(raw) == 1:
	default:
		out = append(out, raw...)
	}
	return out
}
