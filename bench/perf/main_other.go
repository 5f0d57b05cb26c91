//go:build !linux

package main

import "fmt"

func main() { fmt.Println("perf: needs Linux: processors are bound, and epoll drives both ends") }
