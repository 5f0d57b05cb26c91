package gateway

import "context"

// exchange is one client request as the policy code sees it: head, body, reply. The front behind it speaks HTTP; what
// lies in front of it never sees a request or response object of an HTTP library, so another front can replace it.
// It is used by one goroutine.
type exchange interface {
	head
	body
	reply
}

// head is what came before the body.
type head interface {
	// Context ends when the client leaves, or with errShutdown as its cause when the gateway cuts what outlived its drain.
	Context() context.Context
	Method() string
	// Path is the path as sent, without the query: not decoded, not cleaned.
	Path() string
	// Query is what follows the path's question mark, as sent.
	Query() string
	// Header returns all values of a field, in the order they were sent; name is in canonical form.
	Header(name string) []string
	// RemoteIP is the peer's address without its port.
	RemoteIP() string
}

// body is the request's body.
type body interface {
	// BodyLength is its length in bytes, or -1 when it is not known beforehand.
	BodyLength() int64
	// ReadBody reads like io.Reader; a client that is too slow gets a timeout error.
	ReadBody(p []byte) (int, error)
}

// reply is the answer. Begin is called once, before Write.
type reply interface {
	// Begin sends status and fields with the first Write; length -1 means a body of unknown length.
	Begin(status int, fields []headerField, length int64)
	// Write sends p at once and returns when the connection took it. An error means that the client is gone. Where p is
	// the whole answer it is WriteLast.
	Write(p []byte) error
	// WriteLast is Write for bytes behind which nothing is waited for: they may go out with the answer's end.
	// Where p is the whole answer, it must stay as it is until the request is over.
	WriteLast(p []byte) error
	// Cut ends the connection when the request is over, so that what was sent is not taken for a whole answer.
	Cut()
}
