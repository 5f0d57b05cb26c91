//go:build !linux

package main

// coarseSleeps does nothing where the system has no such choice.
func coarseSleeps() {}
