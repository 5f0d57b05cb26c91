package lab

import (
	"testing"

	"github.com/hashicorp/consul/api"
)

func TestTwoConsulAgentsAtOnce(t *testing.T) {
	t.Parallel()
	a, b := Consul(t), Consul(t)
	ca, err := api.NewClient(&api.Config{Address: a.Addr})
	if err != nil {
		t.Fatal(err)
	}
	cb, err := api.NewClient(&api.Config{Address: b.Addr})
	if err != nil {
		t.Fatal(err)
	}
	reg := &api.AgentServiceRegistration{ID: "b1", Name: "vllm", Port: 8000, Meta: map[string]string{"model": "qwen-7b"}}
	if err := ca.Agent().ServiceRegister(reg); err != nil {
		t.Fatal(err)
	}
	services, meta, err := ca.Health().Service("vllm", "", true, nil)
	if err != nil || len(services) != 1 || services[0].Service.Meta["model"] != "qwen-7b" || meta.LastIndex == 0 {
		t.Fatalf("%v %v", services, err)
	}
	if services, _, err = cb.Health().Service("vllm", "", true, nil); err != nil || len(services) != 0 {
		t.Fatalf("the agents know each other: %v %v", services, err)
	}
	a.Restart()
	if services, _, err = ca.Health().Service("vllm", "", true, nil); err != nil || len(services) != 0 {
		t.Fatalf("after a restart: %v %v", services, err)
	}
}
