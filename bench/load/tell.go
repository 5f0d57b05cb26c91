package load

import (
	"fmt"
	"io"
	"net/http"
)

// Tell has an engine, by the URL of any of its ports, follow a plan from now on.
func Tell(url string, p Plan) error {
	_, err := get(url + "/set?" + p.String())
	return err
}

// AskStats reads an engine's totals.
func AskStats(url string) (s Stats, err error) {
	text, err := get(url + "/stats")
	if err != nil {
		return s, err
	}
	_, err = fmt.Sscan(text, &s.Requests, &s.Streams, &s.AskedUsage, &s.BodyBytes)
	return s, err
}

func get(url string) (string, error) {
	answer, err := http.Get(url)
	if err != nil {
		return "", fmt.Errorf("engine: %w", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != 200 {
		err = fmt.Errorf("status %d: %s", answer.StatusCode, text)
	}
	if err != nil {
		return "", fmt.Errorf("engine: %w", err)
	}
	return string(text), nil
}
