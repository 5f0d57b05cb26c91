package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

const maxSlots = 100_000

var (
	poolForm = regexp.MustCompile(`^[A-Za-z0-9._/-]{1,128}$`)
	idForm   = regexp.MustCompile(`^[!-+\--:<-~]{1,128}$`) // printable, without comma and semicolon
)

// parseBackends reads <pool>=<url>;slots=8;id=b1,<pool>=…
func parseBackends(s string) (any, error) {
	var all StaticBackends
	var faults []string
	seen := map[string]bool{}
	for i, part := range strings.Split(s, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		b, err := parseBackend(part)
		if err == nil && seen[b.ID] {
			err = fmt.Errorf("the id %q stands there twice", clip(b.ID))
		}
		if err != nil {
			faults = append(faults, fmt.Sprintf("entry %d: %v", i+1, err))
			continue
		}
		seen[b.ID] = true
		all = append(all, b)
	}
	if len(faults) > 0 {
		return nil, errors.New(strings.Join(faults, ", "))
	}
	return all, nil
}

func parseBackend(part string) (StaticBackend, error) {
	fields := strings.Split(part, ";")
	pool, raw, ok := strings.Cut(fields[0], "=")
	if !ok {
		return StaticBackend{}, errors.New("must be <pool>=<url>;slots=8;id=b1")
	}
	if !poolForm.MatchString(pool) {
		return StaticBackend{}, fmt.Errorf("%q is not a pool's name: [A-Za-z0-9._/-]{1,128}", clip(pool))
	}
	b := StaticBackend{Pool: pool, Slots: DefaultSlots}
	if err := b.setURL(raw); err != nil {
		return b, err
	}
	for _, field := range fields[1:] {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		switch name {
		case "slots":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > maxSlots {
				return b, fmt.Errorf("slots must be from 1 to %d", maxSlots)
			}
			b.Slots = n
		case "id":
			if !idForm.MatchString(value) {
				return b, errors.New("id must be 1 to 128 printable characters")
			}
			b.ID = value
		default:
			return b, fmt.Errorf("unknown field %q (slots and id may follow the URL)", clip(name))
		}
	}
	return b, nil
}

// setURL also gives the backend its default id.
func (b *StaticBackend) setURL(raw string) error {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("must have an http or https URL")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("the URL must have no credentials, query or fragment") // C2
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return errors.New("the URL's port must be from 1 to 65535")
	}
	b.URL = strings.TrimRight(raw, "/")
	b.ID = net.JoinHostPort(u.Hostname(), port)
	return nil
}

// parseOrigins reads origins as browsers send them, or * for all.
func parseOrigins(s string) (any, error) {
	var all Origins
	for _, one := range strings.Split(s, ",") {
		one = strings.TrimSpace(one)
		if one == "" {
			continue
		}
		u, err := url.Parse(one)
		origin := err == nil && u.Host != "" && u.Scheme+"://"+u.Host == one
		if one != "*" && !origin {
			return nil, fmt.Errorf("%q is not an origin (write https://app.example.com, or * for all)", clip(one))
		}
		all = append(all, one)
	}
	return all, nil
}
