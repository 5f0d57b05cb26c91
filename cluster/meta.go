package cluster

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/consul/api"
	"github.com/headgate/headgate/catalogue"
)

// spec is what somebody says about a backend: an entry of Consul, or a static
// one. What the engine itself says is a listing.
type spec struct {
	id         string
	node       string // of Consul; "" for a static one
	created    uint64 // Consul's index of the registration
	pool       string // "" = the pool of the first model
	models     []string
	scheme     string
	host       string
	addr       string
	basePath   string
	slots      int
	capacityMU int64
	hardware   string
	priority   bool
	draining   bool
	critical   bool
	probeCheck string // the id of its check that probes keep; "" = none
}

// ProbeCheck is the name of the TTL check that probes keep, of services that have one.
const ProbeCheck = "headgate-probe"

const (
	defaultSlots = 16
	maxSlots     = 100_000
	maxCapacity  = 1_000_000_000
	maxModels    = 1000
	// DrainingTag on a service takes no new requests to it; what runs there goes
	// on.
	DrainingTag = "draining"
)

var (
	idForm       = regexp.MustCompile(`^[!-+\--~]{1,128}$`) // printable, no space, no comma
	hostForm     = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_.])?$`)
	hardwareForm = regexp.MustCompile(`^[ -~]{0,64}$`)
)

// parseEntry reads one entry of Consul's answer. An error means that this entry
// is left out.
func parseEntry(e *api.ServiceEntry) (spec, error) {
	if e == nil || e.Service == nil {
		return spec{}, errors.New("no service in the entry")
	}
	s := spec{id: e.Service.ID, created: e.Service.CreateIndex}
	nodeAddress := ""
	if e.Node != nil {
		s.node, nodeAddress = e.Node.Node, e.Node.Address
	}
	if !idForm.MatchString(s.id) {
		return s, errors.New("the id is not 1 to 128 printable characters without space and comma")
	}
	address := e.Service.Address
	if address == "" {
		address = nodeAddress
	}
	if err := s.setAddress(address, e.Service.Port); err != nil {
		return s, err
	}
	s.draining = slices.Contains(e.Service.Tags, DrainingTag)
	for _, check := range e.Checks {
		if check != nil && (check.Status == api.HealthCritical || check.Status == api.HealthMaint) {
			s.critical = true
		}
		if check != nil && check.Name == ProbeCheck && check.Type == "ttl" {
			s.probeCheck = check.CheckID
		}
	}
	return s, s.setMeta(e.Service.Meta)
}

// setAddress takes a name, an IPv4 or an IPv6 address, the last with or without
// brackets.
func (s *spec) setAddress(address string, port int) error {
	if port < 1 || port > 65535 {
		return fmt.Errorf("port %d", port)
	}
	p := strconv.Itoa(port)
	bare := address
	if inner, ok := strings.CutPrefix(address, "["); ok {
		bare, _ = strings.CutSuffix(inner, "]")
		if bare == inner {
			return fmt.Errorf("address %q", clip(address))
		}
	}
	if ip, err := netip.ParseAddr(bare); err == nil {
		s.addr = net.JoinHostPort(ip.String(), p)
		s.host = net.JoinHostPort(ip.WithZone("").String(), p) // a zone means nothing to the other side
		return nil
	}
	if !hostForm.MatchString(address) {
		return fmt.Errorf("address %q", clip(address))
	}
	s.addr = net.JoinHostPort(address, p)
	s.host = s.addr
	return nil
}

func (s *spec) setMeta(meta map[string]string) error {
	s.scheme, s.slots = "http", defaultSlots
	for name, read := range map[string]func(string) error{
		"model": s.setModels, "pool": s.setPool, "slots": s.setSlots, "capacity_mu": s.setCapacity,
		"hardware": s.setHardware, "scheme": s.setScheme, "priority": s.setPriority,
	} {
		value := strings.TrimSpace(meta[name])
		if value == "" {
			continue
		}
		if err := read(value); err != nil {
			return fmt.Errorf("meta %s %q: %w", name, clip(value), err)
		}
	}
	return nil
}

func (s *spec) setModels(value string) error {
	for _, name := range strings.Split(value, ",") {
		name = strings.TrimSpace(name)
		switch {
		case name == "" || slices.Contains(s.models, name):
		case !catalogue.ValidName(name):
			return errors.New("not a list of model names")
		case len(s.models) == maxModels:
			return fmt.Errorf("more than %d models", maxModels)
		default:
			s.models = append(s.models, name)
		}
	}
	return nil
}

func (s *spec) setPool(value string) error {
	if !catalogue.ValidPool(value) {
		return errors.New("not a pool's name")
	}
	s.pool = value
	return nil
}

func (s *spec) setSlots(value string) error {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > maxSlots {
		return fmt.Errorf("not a number from 1 to %d", maxSlots)
	}
	s.slots = n
	return nil
}

func (s *spec) setCapacity(value string) error {
	f, err := strconv.ParseFloat(value, 64)
	if err != nil || !(f >= 1 && f <= maxCapacity) {
		return fmt.Errorf("not a number from 1 to %d", maxCapacity)
	}
	s.capacityMU = int64(math.Round(f))
	return nil
}

func (s *spec) setHardware(value string) error {
	if !hardwareForm.MatchString(value) {
		return errors.New("not 64 printable characters at most")
	}
	s.hardware = value
	return nil
}

func (s *spec) setScheme(value string) error {
	if value != "http" && value != "https" {
		return errors.New("neither http nor https")
	}
	s.scheme = value
	return nil
}

func (s *spec) setPriority(value string) (err error) {
	if s.priority, err = strconv.ParseBool(value); err != nil {
		return errors.New("neither true nor false")
	}
	return nil
}

// Static is a backend that is named by configuration and not by Consul.
type Static struct {
	Pool  string
	URL   string // http or https, a path before every route is allowed
	Slots int    // 0 = 16
	ID    string // "" = the URL's host:port
}

func parseStatic(b Static) (spec, error) {
	s := spec{id: b.ID, pool: b.Pool, slots: b.Slots}
	if s.slots == 0 {
		s.slots = defaultSlots
	}
	u, err := url.Parse(b.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return s, errors.New("the URL must begin with http:// or https:// and have no credentials")
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return s, errors.New("the URL's port cannot be read")
	}
	if err := s.setAddress(u.Hostname(), n); err != nil {
		return s, err
	}
	s.scheme, s.basePath = u.Scheme, strings.TrimRight(u.EscapedPath(), "/")
	if s.id == "" {
		s.id = s.host
	}
	if !idForm.MatchString(s.id) || !catalogue.ValidPool(s.pool) || s.slots < 1 || s.slots > maxSlots {
		return s, errors.New("id, pool or slots out of bounds")
	}
	return s, nil
}

// clip keeps what others registered short and printable in a log line.
func clip(s string) string {
	q := strconv.Quote(s)
	q = q[1 : len(q)-1]
	if len(q) > 60 {
		return q[:60] + "…"
	}
	return q
}
