package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// body is requests of one size with different texts. They take turns: a text that is read again and again is learned by
// heart by the processor's branch prediction, which makes every scanner look two to three times as fast as it is.
type body struct {
	name  string
	size  int
	texts [][]byte
}

var bodies = []body{
	bodyOf("294 B", 256, 1, 131, "é"),
	bodyOf("100 KB", 16, 1, 102_200, "é"),
	bodyOf("100 KB, ASCII", 16, 1, 102_200, "e"),
	bodyOf("100 KB, 200 messages", 16, 200, 102_200-200*28, "é"),
	withTools("100 KB of tools", 16, 102_000),
	bodyOf("1 MB", 4, 1, 1<<20-200, "é"),
}

func bodyOf(name string, different, messages, size int, accent string) body {
	b := body{name: name}
	for i := range different {
		b.texts = append(b.texts, chat(uint64(i), messages, size, accent))
	}
	b.size = len(b.texts[0])
	return b
}

// withTools is a short question with size bytes of descriptions of tools before it: more structure than text.
func withTools(name string, different, size int) body {
	b := body{name: name}
	for i := range different {
		var tools strings.Builder
		for k := 0; tools.Len() < size; k++ {
			fmt.Fprintf(&tools, `{"type":"function","function":{"name":"f%d","description":"%s","parameters":{"type":"object","properties":{`, k, prose(uint64(i)<<32|uint64(k), 60, "e"))
			for p := range 5 {
				fmt.Fprintf(&tools, `"p%d":{"type":"string","enum":["a%d","b"],"minLength":%d},`, p, k, p)
			}
			tools.WriteString(`"x":{"type":"number","default":-1.5e3}},"required":["x"],"additionalProperties":false}}},`)
		}
		b.texts = append(b.texts, []byte(strings.Replace(string(chat(uint64(i), 1, 40, "e")), `"messages"`, `"tools":[`+strings.TrimSuffix(tools.String(), ",")+`],"messages"`, 1)))
	}
	b.size = len(b.texts[0])
	return b
}

func (b body) text(i int) []byte { return b.texts[i%len(b.texts)] }

func (b body) want(i int) found {
	return found{model: "qwen-7b", user: "u-1", stream: true, maxTokens: 256, prompt: head(messages(b.text(i)))}
}

// chat is a request whose messages have size bytes of text together. The text has 2,900 escapes per 100 KB, and with an
// accent of two bytes 3.9 % of them are not ASCII.
func chat(seed uint64, messages, size int, accent string) []byte {
	var b strings.Builder
	b.WriteString(`{"model":"qwen-7b","stream":true,"stream_options":{"include_usage":true},"max_tokens":256,"user":"u-1","messages":[`)
	for i := range messages {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"role":"user","content":"%s"}`, prose(seed<<32|uint64(i), size/messages, accent))
	}
	b.WriteString(`],"temperature":0.7}`)
	return []byte(b.String())
}

// prose is size bytes of JSON text without quotes around it.
func prose(seed uint64, size int, accent string) string {
	rng := rand.New(rand.NewPCG(seed, 7))
	escapes := []string{`\n`, `\"`, `\t`, `\\`}
	var b strings.Builder
	for b.Len() < size-2 {
		switch n := rng.IntN(1000); {
		case n < 29:
			b.WriteString(escapes[rng.IntN(len(escapes))])
		case n < 49:
			b.WriteString(accent)
		case n < 200:
			b.WriteByte(' ')
		default:
			b.WriteByte(byte('a' + rng.IntN(26)))
		}
	}
	for b.Len() < size {
		b.WriteByte('.')
	}
	return b.String()
}

// hostility is a body that must not be forwarded as if it were understood.
type hostility struct{ name, text string }

var hostile = []hostility{
	{"refuses a second model", `{"model":"a","model":"b","messages":[]}`},
	{"bytes that are not UTF-8", "{\"model\":\"a\",\"messages\":[{\"content\":\"\xff\xfe\"}]}"},
	{"text behind the end", `{"model":"a","messages":[]} x`},
	{"a missing comma deep inside", `{"model":"a","messages":[],"x":{"y":[1 2]}}`},
	{"a bad escape in a message", `{"model":"a","messages":[{"content":"\q"}]}`},
}

// verdict is yes if the body is refused, else which model was read.
func (h hostility) verdict(c contender) string {
	f, err := c.read([]byte(h.text))
	if err != nil {
		return "yes"
	}
	if f.model == "b" {
		return "no, last wins"
	}
	if strings.Contains(h.name, "second") {
		return "no, first wins"
	}
	return "no"
}
