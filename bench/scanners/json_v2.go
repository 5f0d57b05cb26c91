//go:build goexperiment.jsonv2

package main

import (
	"bytes"
	"encoding/json/jsontext"
	jsonv2 "encoding/json/v2"
	"io"
)

const experiment = ", built on v2"

var more = []contender{
	{"encoding/json/jsontext, tokens", func(body []byte) (f found, err error) {
		d := jsontext.NewDecoder(bytes.NewReader(body))
		if t, err := d.ReadToken(); err != nil || t.Kind() != '{' {
			return f, errRefused
		}
		for d.PeekKind() == '"' {
			name, err := d.ReadToken()
			if err != nil {
				return f, err
			}
			switch name.String() {
			case "model", "user":
				into := &f.model
				if name.String() == "user" {
					into = &f.user
				}
				t, err := d.ReadToken()
				if err != nil {
					return f, err
				}
				*into = t.String()
			case "stream":
				t, err := d.ReadToken()
				if err != nil {
					return f, err
				}
				f.stream = t.Bool()
			case "max_tokens":
				t, err := d.ReadToken()
				if err != nil {
					return f, err
				}
				f.maxTokens = t.Int()
			case "messages":
				v, err := d.ReadValue()
				if err != nil {
					return f, err
				}
				f.prompt = head(v)
			default:
				if err := d.SkipValue(); err != nil {
					return f, err
				}
			}
		}
		if _, err := d.ReadToken(); err != nil {
			return f, err
		}
		if _, err := d.ReadToken(); err != io.EOF {
			return f, errRefused
		}
		return f, nil
	}},
	{"encoding/json/v2 Unmarshal", func(body []byte) (found, error) {
		var r struct {
			Model     string         `json:"model"`
			Stream    bool           `json:"stream"`
			MaxTokens int64          `json:"max_tokens"`
			User      string         `json:"user"`
			Messages  jsontext.Value `json:"messages"`
		}
		err := jsonv2.Unmarshal(body, &r)
		return found{r.Model, r.User, r.Stream, r.MaxTokens, head(r.Messages)}, err
	}},
}
