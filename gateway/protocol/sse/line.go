package sse

const (
	dataField  = "data:"
	errorField = "event:error" // with a space behind the colon or without
	byteOrder  = "\xEF\xBB\xBF"
)

type lineKind uint8

const (
	lineHead    lineKind = iota // what has been read could still be "data:"
	lineSpace                   // right behind "data:": one space is not data
	lineData                    // data
	lineComment                 // begins with a colon
	lineEvent                   // what has been read could still be "event: error"
	lineOther                   // another field
)

// line is what has been read of the current line. The zero value is the start of a stream.
type line struct {
	kind   lineKind
	match  int  // bytes of dataField or errorField matched while kind is lineHead or lineEvent
	spaced bool // the space in "event: error" was there
	length int  // bytes of the line, without a byte order mark
	begun  bool // the data of the line has been announced
	mark   int  // bytes of the byte order mark matched at the start of the stream; -1 behind it
}

func (l *line) reset() { *l = line{mark: -1} }

// blank reports whether the line that ends now is empty.
func (l *line) blank() bool {
	return l.length == 0 && (l.mark <= 0 || l.mark == len(byteOrder))
}

// endsAsData reports whether the line is the bare word data, which is a data field without a value.
func (l *line) endsAsData() bool {
	return l.kind == lineHead && l.match == len(dataField)-1
}

// isError reports whether the line that ends now says that the event is an error.
func (l *line) isError() bool { return l.kind == lineEvent && l.match == len(errorField) }

// read takes the next bytes of the line. It returns how many of them are not data; the rest is.
func (l *line) read(b []byte) (skip int) {
	for ; skip < len(b) && l.kind != lineData; skip++ {
		c := b[skip]
		if l.mark >= 0 {
			if l.mark < len(byteOrder) && c == byteOrder[l.mark] {
				l.mark++
				continue
			}
			if l.mark > 0 && l.mark < len(byteOrder) { // a name that only began like one
				l.kind = lineOther
				l.length += l.mark
			}
			l.mark = -1
		}
		switch {
		case l.kind == lineComment || l.kind == lineOther:
			l.length += len(b) - skip
			return len(b)
		case l.kind == lineSpace:
			l.kind = lineData
			if c != ' ' {
				return l.count(b, skip)
			}
		case l.kind == lineEvent:
			l.readEvent(c)
		case c == dataField[l.match]:
			if l.match++; l.match == len(dataField) {
				l.kind = lineSpace
			}
		case l.length > 0:
			l.kind = lineOther
		case c == ':':
			l.kind = lineComment
		case c == errorField[0]:
			l.kind, l.match = lineEvent, 1
		default:
			l.kind = lineOther
		}
		l.length++
	}
	return l.count(b, skip)
}

func (l *line) readEvent(c byte) {
	switch {
	case l.match < len(errorField) && c == errorField[l.match]:
		l.match++
	case c == ' ' && l.match == len("event:") && !l.spaced:
		l.spaced = true
	default:
		l.kind = lineOther
	}
}

// count adds what is behind skip, all of it data.
func (l *line) count(b []byte, skip int) int {
	l.length += len(b) - skip
	return skip
}
