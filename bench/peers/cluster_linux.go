package peers

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Cluster starts a Redis Cluster of so many primaries, without replicas, and returns its nodes and the URL.
func (s *Site) Cluster(primaries int) (nodes []*Process, url string, err error) {
	const slots = 16384
	var addrs []string
	for i := range primaries {
		p, err := s.RedisServer(true)
		if err != nil {
			return nil, "", err
		}
		nodes, addrs = append(nodes, p), append(addrs, p.Addr.String())
		if _, err := ask(p.Addr, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*slots/primaries), strconv.Itoa((i+1)*slots/primaries-1)); err != nil {
			return nil, "", err
		}
	}
	for _, p := range nodes[1:] {
		bus := strconv.Itoa(busPort(p.Addr.Port()))
		if _, err := ask(nodes[0].Addr, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(int(p.Addr.Port())), bus); err != nil {
			return nil, "", err
		}
	}
	for end := time.Now().Add(30 * time.Second); ; {
		if formed(nodes) {
			return nodes, "redis://" + strings.Join(addrs, ",") + "/0", nil
		}
		if time.Now().After(end) {
			return nil, "", errors.New("the cluster does not form")
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// busPort of a node: below the ports that are given out.
func busPort(port uint16) int { return int(port)%20000 + 10000 }

// formed is true when every node knows all slots and all nodes.
func formed(nodes []*Process) bool {
	for _, p := range nodes {
		info, err := ask(p.Addr, "CLUSTER", "INFO")
		if err != nil || !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", len(nodes))) {
			return false
		}
	}
	return true
}

func ask(addr netip.AddrPort, args ...string) (string, error) {
	return run(nil, append([]string{"redis-cli", "-e", "-h", addr.Addr().String(), "-p", strconv.Itoa(int(addr.Port()))}, args...)...)
}

// End ends some of what was started before the site closes.
func (s *Site) End(some ...*Process) {
	for _, p := range some {
		p.Kill()
	}
}
