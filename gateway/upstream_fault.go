package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// upstreamFaultKind says how a call failed before its response head was there. The zero value means nothing.
type upstreamFaultKind uint8

const (
	_ upstreamFaultKind = iota
	// upstreamFaultUnsendable: the call itself is malformed (a line break in a header, a wrong BodyLen). Ours to mend.
	upstreamFaultUnsendable
	// upstreamFaultConnect: refused, unreachable, unknown name, TLS failed. Nothing was sent.
	upstreamFaultConnect
	// upstreamFaultConnectTimeout: no connection within ConnectTimeout. Nothing was sent.
	upstreamFaultConnectTimeout
	// upstreamFaultShort: this process, or its machine, has no socket left. Nothing was sent, and the engine has no part in it.
	upstreamFaultShort
	// upstreamFaultDied: the connection ended or was reset before a whole response head.
	upstreamFaultDied
	// upstreamFaultBad: what came is not HTTP/1.x, is ambiguous, or exceeds a limit.
	upstreamFaultBad
	// upstreamFaultTimeout: HeadBy or the context's deadline passed.
	upstreamFaultTimeout
	// upstreamFaultCancelled: the context was cancelled.
	upstreamFaultCancelled
)

func (k upstreamFaultKind) String() string {
	switch k {
	case upstreamFaultUnsendable:
		return "unsendable"
	case upstreamFaultConnect:
		return "connect"
	case upstreamFaultConnectTimeout:
		return "connect timeout"
	case upstreamFaultShort:
		return "no socket left"
	case upstreamFaultDied:
		return "died"
	case upstreamFaultBad:
		return "bad response"
	case upstreamFaultTimeout:
		return "timeout"
	case upstreamFaultCancelled:
		return "cancelled"
	default:
		return "none"
	}
}

// upstreamFault is a call without a response head. The zero value means nothing. Err is for logs, never for clients.
type upstreamFault struct {
	Kind upstreamFaultKind
	// Received: at least one byte of a response came (an interim 1xx counts).
	Received bool
	// Reached: the engine may have taken in some of the request. False is certain.
	Reached bool
	Err     error

	stale bool // a reused connection that had been closed; the request is safe to send again
}

func (f *upstreamFault) Error() string { return fmt.Sprintf("engine call: %s: %v", f.Kind, f.Err) }
func (f *upstreamFault) Unwrap() error { return f.Err }

// How a body can end other than by io.EOF, which is its clean end. They come wrapped: use errors.Is.
var (
	// errUpstreamCut: the engine ended the connection before the body's own end.
	errUpstreamCut = errors.New("engine cut the answer off")
	// errUpstreamReset is errUpstreamCut by a TCP reset (or the like): errors.Is holds for both.
	errUpstreamReset = fmt.Errorf("%w: connection reset", errUpstreamCut)
	// errUpstreamBad: the head or the chunked framing breaks the rules.
	errUpstreamBad = errors.New("bad response from engine")
	// errUpstreamSilent: the silence clock or the instant of SetReadBy passed.
	errUpstreamSilent = errors.New("engine fell silent")
	// errUpstreamQuiet is no end: the wake of SetWake.
	errUpstreamQuiet = errors.New("engine is quiet")
	// errUpstreamAborted: Abort was called or the call's context ended.
	errUpstreamAborted = errors.New("call aborted")
)

func upstreamFaultOfContext(ctx context.Context) upstreamFaultKind {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return upstreamFaultTimeout
	}
	return upstreamFaultCancelled
}

// engineIsGone is true when the other side ended the connection, in order or not.
func engineIsGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || engineIsReset(err)
}

// engineIsReset: the connection was ended out of order, or what we sent found nobody.
func engineIsReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNABORTED)
}

// shortOfSockets is true when this side has none: no descriptors, ports or memory for one.
func shortOfSockets(err error) bool {
	for _, short := range [...]error{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, short) {
			return true
		}
	}
	return false
}

// engineIsDeadline is true for our own deadlines only, not for the kernel's ETIMEDOUT.
func engineIsDeadline(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// engineIsTimeout is true for a passed deadline, ours or the kernel's.
func engineIsTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// engineBodyError translates a failed read of a body. clean says that the end of the connection is the end of the body.
func engineBodyError(err error, clean bool) error {
	switch {
	case err == io.EOF && clean:
		return io.EOF
	case engineIsDeadline(err):
		return errUpstreamSilent
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errUpstreamCut
	case engineIsReset(err), errors.Is(err, net.ErrClosed):
		return errUpstreamReset
	default:
		return fmt.Errorf("%w: %w", errUpstreamReset, err)
	}
}
