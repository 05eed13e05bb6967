package main

import (
	"testing"

	"github.com/anishathalye/porcupine"
)

func at(n int64) *int64 { return &n }

func check(lines ...line) bool {
	return porcupine.CheckOperations(model, operations(lines))
}

func TestGood(t *testing.T) {
	if !check(
		line{Call: 1, Return: at(4), Op: "append", Records: []uint64{7, 8}, Told: "appended", First: 2},
		line{Client: 1, Call: 2, Return: at(3), Op: "append", Records: []uint64{9}, Told: "appended", First: 1},
		line{Client: 2, Call: 5, Op: "append", Records: []uint64{10}, Told: "nothing"},
		line{Call: 6, Return: at(7), Op: "info", Told: "info", First: 1, Last: 4},
		line{Call: 8, Return: at(9), Op: "discard", Index: 6, Told: "discarded"},
		line{Call: 10, Return: at(11), Op: "read", Index: 3, Linear: true, Told: "gone"},
		line{Call: 12, Return: at(13), Op: "info", Told: "info", First: 6, Last: 5},
		line{Log: [][2]uint64{{1, 9}, {2, 7}, {3, 8}, {4, 10}}},
	) {
		t.Fatal("a good history was refused")
	}
}

func TestBad(t *testing.T) {
	first := line{Call: 1, Return: at(2), Op: "append", Records: []uint64{7}, Told: "appended", First: 1}
	for name, lines := range map[string][]line{
		"an index twice":     {first, {Call: 3, Return: at(4), Op: "append", Records: []uint64{8}, Told: "appended", First: 1}},
		"an old end":         {first, {Call: 3, Return: at(4), Op: "info", Told: "info", First: 1, Last: 0}},
		"a lost record":      {first, {Call: 3, Return: at(4), Op: "read", Index: 1, Linear: true, Told: "beyond"}},
		"another record":     {first, {Call: 3, Return: at(4), Op: "read", Index: 1, Linear: true, Told: "record", Record: 8}},
		"a discard undone":   {first, {Call: 3, Return: at(4), Op: "discard", Index: 2, Told: "discarded"}, {Call: 5, Return: at(6), Op: "read", Index: 1, Linear: true, Told: "record", Record: 7}},
		"against real time":  {{Call: 1, Return: at(2), Op: "append", Records: []uint64{7}, Told: "appended", First: 2}, {Call: 3, Return: at(4), Op: "append", Records: []uint64{8}, Told: "appended", First: 1}},
		"a batch cut in two": {{Call: 1, Return: at(9), Op: "append", Records: []uint64{7, 8}, Told: "appended", First: 1}, {Client: 1, Call: 3, Return: at(4), Op: "info", Told: "info", First: 1, Last: 1}},
	} {
		if check(lines...) {
			t.Errorf("not noticed: %s", name)
		}
	}
}
