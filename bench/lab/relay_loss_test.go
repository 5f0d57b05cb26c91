package lab

import (
	"io"
	"testing"
)

func TestRelayLosesOneReply(t *testing.T) {
	t.Parallel()
	r := Relay(t, echo(t))
	lost := r.LoseReply("settle")
	c, other := dial(t, r.Addr), dial(t, r.Addr)
	roundTrip(t, c)
	c.Write([]byte("settle this"))
	<-lost
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Fatalf("%d bytes of the reply arrived, %v", n, err)
	}
	if up, _ := r.Bytes(); up != int64(len("x"+"settle this")) {
		t.Fatalf("%d bytes went up: the request did not pass", up)
	}
	other.Write([]byte("settle that"))
	if _, err := io.ReadFull(other, make([]byte, len("settle that"))); err != nil {
		t.Fatalf("another reply was lost: %v", err)
	}
}
