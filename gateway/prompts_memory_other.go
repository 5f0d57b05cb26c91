//go:build !linux

package gateway

func mapped(size int64) []byte { return make([]byte, 0, size) }

func unmap([]byte) {}
