package gateway

import (
	"slices"
	"testing"

	"github.com/headgate/headgate/gateway/protocol"
)

// TestATimeoutIsNotRepeatedByClients: client libraries repeat every 5xx by themselves; what must not be run again says so.
func TestATimeoutIsNotRepeatedByClients(t *testing.T) {
	never := headerField{"X-Should-Retry", "false"}
	if no := refusalOf(protocol.Timeout("slow")); !slices.Contains(no.fields, never) {
		t.Errorf("a timeout carries %v", no.fields)
	}
	if no := refusalOf(protocol.QueueFull()); slices.Contains(no.fields, never) || !slices.Contains(no.fields, headerField{"Retry-After", "1"}) {
		t.Errorf("a full queue carries %v", no.fields)
	}
}
