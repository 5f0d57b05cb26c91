// Command go runs the client libraries of Go against a fleet; see the folder above.
package main

func main() {
	var all []test
	for _, tests := range [][]test{openaiTests(), sashabaranovTests()} {
		all = append(all, tests...)
	}
	runAll(all)
}
