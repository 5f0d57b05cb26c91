package cluster

import (
	"net"
	"net/netip"
	"time"
)

// ServiceName is what replicas register themselves as.
const ServiceName = "headgate"

// selfTTL is how long a replica that was killed is passing; it says that it lives three times as often.
const selfTTL = 6 * time.Second

// SelfRegistration is the registration of a replica, so that load balancers find it: listen is the address it was told to
// listen on, bound the one it has (for its port). Where listen names no host, Consul gives the agent's own address. The
// check is critical while fault returns an error.
func SelfRegistration(id, listen string, bound net.Addr, fault func() error) Registration {
	r := Registration{ID: id, Service: ServiceName, TTL: selfTTL, Fault: fault}
	if host, _, err := net.SplitHostPort(listen); err == nil {
		ip, err := netip.ParseAddr(host)
		if host != "" && (err != nil || !ip.Unmap().IsUnspecified()) {
			r.Address = host
		}
	}
	if tcp, ok := bound.(*net.TCPAddr); ok {
		r.Port = tcp.Port
	}
	return r
}
