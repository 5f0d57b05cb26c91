package main

import (
	"errors"

	bare "github.com/headgate/headgate/bench/scanners/generated/bare/scan"
	noends "github.com/headgate/headgate/bench/scanners/generated/noends/scan"
	nolengths "github.com/headgate/headgate/bench/scanners/generated/nolengths/scan"
	nonames "github.com/headgate/headgate/bench/scanners/generated/nonames/scan"
	nostructure "github.com/headgate/headgate/bench/scanners/generated/nostructure/scan"
	noutf8 "github.com/headgate/headgate/bench/scanners/generated/noutf8/scan"
	strict "github.com/headgate/headgate/bench/scanners/generated/strict/scan"
	"github.com/headgate/headgate/gateway/protocol/scan"
)

var errRefused = errors.New("refused")

// The scanner and its copies differ in their types only.

var scanner = contender{"headgate's scanner", func(body []byte) (found, error) {
	b, fault := scan.Scan(body, scan.Chat)
	if fault != nil {
		return found{}, errRefused
	}
	return found{b.Model, b.User, b.Stream, b.MaxTokens, head(body[b.MessagesAt.From:b.MessagesAt.To])}, nil
}}

var checks = []contender{
	{"without UTF-8", func(body []byte) (found, error) {
		b, fault := noutf8.Scan(body, noutf8.Chat)
		if fault != nil {
			return found{}, errRefused
		}
		return found{b.Model, b.User, b.Stream, b.MaxTokens, head(body[b.MessagesAt.From:b.MessagesAt.To])}, nil
	}},
	{"without repeated and escaped names", func(body []byte) (found, error) {
		b, fault := nonames.Scan(body, nonames.Chat)
		if fault != nil {
			return found{}, errRefused
		}
		return found{b.Model, b.User, b.Stream, b.MaxTokens, head(body[b.MessagesAt.From:b.MessagesAt.To])}, nil
	}},
	{"without text lengths and images", func(body []byte) (found, error) {
		b, fault := nolengths.Scan(body, nolengths.Chat)
		if fault != nil {
			return found{}, errRefused
		}
		return found{b.Model, b.User, b.Stream, b.MaxTokens, head(body[b.MessagesAt.From:b.MessagesAt.To])}, nil
	}},
	{"without these and message ends", func(body []byte) (found, error) {
		b, fault := noends.Scan(body, noends.Chat)
		if fault != nil {
			return found{}, errRefused
		}
		return found{b.Model, b.User, b.Stream, b.MaxTokens, head(body[b.MessagesAt.From:b.MessagesAt.To])}, nil
	}},
	{"without structure below known fields", func(body []byte) (found, error) {
		b, fault := nostructure.Scan(body, nostructure.Chat)
		if fault != nil {
			return found{}, errRefused
		}
		return found{b.Model, b.User, b.Stream, b.MaxTokens, head(body[b.MessagesAt.From:b.MessagesAt.To])}, nil
	}},
	{"without any of these", func(body []byte) (found, error) {
		b, fault := bare.Scan(body, bare.Chat)
		if fault != nil {
			return found{}, errRefused
		}
		return found{b.Model, b.User, b.Stream, b.MaxTokens, head(body[b.MessagesAt.From:b.MessagesAt.To])}, nil
	}},
	{"with escapes and control characters checked too", func(body []byte) (found, error) {
		b, fault := strict.Scan(body, strict.Chat)
		if fault != nil {
			return found{}, errRefused
		}
		return found{b.Model, b.User, b.Stream, b.MaxTokens, head(body[b.MessagesAt.From:b.MessagesAt.To])}, nil
	}},
}
