package scripted

import "fmt"

// The events of a chat stream, each with its blank line.
const (
	// F ends the answer.
	F = `data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"m-small","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	// D is the end of a stream.
	D = "data: [DONE]\n\n"
)

// E is a chunk with the text content, which stands in JSON as it is.
func E(content string) string { return At(0, content) }

// At is E for one of several choices.
func At(choice int, content string) string {
	return fmt.Sprintf(`data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"m-small","choices":[{"index":%d,"delta":{"content":"%s"},"finish_reason":null}]}`+"\n\n", choice, content)
}

// FinishAt is F for one of several choices.
func FinishAt(choice int) string {
	return fmt.Sprintf(`data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"m-small","choices":[{"index":%d,"delta":{},"finish_reason":"stop"}]}`+"\n\n", choice)
}

// U is the chunk with the usage.
func U(prompt, completion int) string {
	return fmt.Sprintf(`data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"m-small","choices":[],"usage":%s}`+"\n\n", Usage(prompt, completion))
}

// Usage is the object alone.
func Usage(prompt, completion int) string {
	return fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, prompt, completion, prompt+completion)
}

// S3 is a whole stream: a, b, c, the finish, usage 10/3, [DONE].
func S3() []string { return []string{E("a"), E("b"), E("c"), F, U(10, 3), D} }

// J is an answer that is not streamed, with the content abc.
func J(prompt, completion int) string {
	return fmt.Sprintf(`{"id":"c1","object":"chat.completion","created":1,"model":"m-small","choices":[{"index":0,"message":{"role":"assistant","content":"abc"},"finish_reason":"stop"}],"usage":%s}`, Usage(prompt, completion))
}
