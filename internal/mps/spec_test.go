package mps

import (
	"reflect"
	"strings"
	"testing"
)

func TestSpec(t *testing.T) {
	for text, want := range map[string]Spec{
		"job=7,uid=1000,gid=100,gpus=GPU-1": {Job: "7", UID: 1000, GID: 100, GPUs: []string{"GPU-1"}},
		"job=4294967294,uid=0,gid=0,gpus=GPU-4b0480b4-1+GPU-2,percent=50,mem=1536M,program=/opt/x/mps-1.0": {
			Job: "4294967294", GPUs: []string{"GPU-4b0480b4-1", "GPU-2"}, Percent: 50, Memory: 1536, Program: "/opt/x/mps-1.0",
		},
	} {
		got, err := ParseSpec(text)
		if err != nil || !reflect.DeepEqual(got, want) || got.String() != text {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	const good = "job=7,uid=1,gid=1,gpus=GPU-1"
	for _, text := range []string{
		"", "off", "job=7", good + ",", good + ",x=1", good + ",percent=0", good + ",percent=101", good + ",percent=050", good + ",mem=1", good + ",mem=0M",
		good + ",mem=99999999999999M", good + ",program=", good + ",program=x", good + ",program=/a/../b", good + ",program=/a b", good + ",program=/a\nb",
		"uid=1,job=7,gid=1,gpus=GPU-1", "job=0,uid=1,gid=1,gpus=GPU-1", "job=../7,uid=1,gid=1,gpus=GPU-1", "job=07,uid=1,gid=1,gpus=GPU-1",
		"job=7,uid=-1,gid=1,gpus=GPU-1", "job=7,uid=4294967296,gid=1,gpus=GPU-1", "job=7,uid=1,gid=1,gpus=", "job=7,uid=1,gid=1,gpus=GPU-",
		"job=7,uid=1,gid=1,gpus=MIG-1", "job=7,uid=1,gid=1,gpus=GPU-1+GPU-1", "job=7,uid=1,gid=1,gpus=GPU-../x", "job=7,uid=1,gid=1,gpus=GPU-1+",
		"job=7,uid=1,gid=1,gpus=GPU-" + strings.Repeat("a", 100), "job=7,uid=1,gid=1,gpus=GPU-1" + strings.Repeat("+GPU-2", 70),
	} {
		if s, err := ParseSpec(text); err == nil || strings.ContainsRune(err.Error(), '\n') {
			t.Errorf("%q: %+v, %v", text, s, err)
		}
	}
}

func FuzzParseSpec(f *testing.F) {
	f.Add("job=7,uid=1000,gid=100,gpus=GPU-1+GPU-2,percent=50,mem=1536M,program=/opt/x")
	f.Add("job=1,uid=0,gid=0,gpus=GPU-x,job=2")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSpec(text)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r\x00\x1b") {
				t.Errorf("%q", err)
			}
			return
		}
		if s.String() != text || strings.Trim(s.Job, "0123456789") != "" || !isUUID(s.GPUs[0]) {
			t.Errorf("%q is %+v", text, s)
		}
	})
}

func FuzzParseStat(f *testing.F) {
	f.Add("1 (systemd) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 17 1 2")
	f.Add("77 (a) b) (c) Z 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 1 2")
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := parseStat(text); err == nil && !strings.Contains(text, "("+p.Name+")") {
			t.Errorf("%q: %+v", text, p)
		}
	})
}

func TestParseStat(t *testing.T) {
	got, err := parseStat("77 (a) b) (c) Z 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 1 2\n")
	if want := (Process{PID: 77, Start: 4711, Name: "a) b) (c", State: 'Z'}); err != nil || got != want || !got.ended() {
		t.Errorf("%+v, %v", got, err)
	}
}
