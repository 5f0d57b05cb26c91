//go:build !goexperiment.jsonv2

package main

const experiment = ""

var more []contender
