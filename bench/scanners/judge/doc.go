// Package judge holds the gateway's scanner against encoding/json/jsontext. It has tests only, built with
// GOEXPERIMENT=jsonv2; docs/scanner.md lists what the two have agreed to differ in.
package judge
