// Checks histories of the simulator with porcupine, a linearizability checker that shares no code with chiplog: whether all
// answers can come from one log that executes one operation at a time.
//
// Usage: porcupine FILE…  (JSON lines, as `chiplog-sim export` writes them)
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// A line of a history: a call, or the log's contents.
type line struct {
	Client  int64    `json:"client"`
	Call    int64    `json:"call"`
	Return  *int64   `json:"return"`
	Op      string   `json:"op"`
	Records []uint64 `json:"records"`
	Index   uint64   `json:"index"`
	Linear  bool     `json:"linear"`
	Told    string   `json:"told"`
	First   uint64   `json:"first"`
	Last    uint64   `json:"last"`
	Record  uint64   `json:"record"`
	// Index and record of all that was ever committed. Only on the last line.
	Log [][2]uint64 `json:"log"`
}

// The log: records[i] is at index i+1; 0 is an index that a discard beyond the end skipped.
type state struct {
	first   uint64
	records []uint64
	hash    uint64
}

func (s state) last() uint64 { return uint64(len(s.records)) }

func (s state) plus(records ...uint64) state {
	n := len(s.records)
	next := state{first: s.first, records: append(s.records[:n:n], records...), hash: s.hash}
	for _, r := range records {
		next.hash = (next.hash ^ r) * 0x9e3779b97f4a7c15
		next.hash ^= next.hash >> 29
	}
	return next
}

var model = porcupine.Model{
	Init: func() interface{} { return state{first: 1} },
	Equal: func(a, b interface{}) bool {
		x, y := a.(state), b.(state)
		return x.first == y.first && len(x.records) == len(y.records) && x.hash == y.hash
	},
	Step: func(s, input, output interface{}) (bool, interface{}) {
		return step(s.(state), input.(line))
	},
	DescribeOperation: func(input, output interface{}) string {
		l := input.(line)
		return fmt.Sprintf("%s %v %d: %s %d %d", l.Op, l.Records, l.Index, l.Told, l.First, l.Last)
	},
}

// Whether a log in this state can give this answer, and the state after it.
func step(s state, l line) (bool, state) {
	switch l.Op {
	case "append":
		if l.First != 0 && l.First != s.last()+1 {
			return false, s
		}
		return true, s.plus(l.Records...)
	case "discard":
		next := s
		for next.last()+1 < l.Index {
			next = next.plus(0)
		}
		next.first = max(next.first, l.Index)
		return true, next
	case "info":
		return l.First == s.first && l.Last == s.last(), s
	case "read":
		switch l.Told {
		case "gone":
			return l.Index < s.first, s
		case "beyond":
			return l.Index > s.last(), s
		default:
			there := l.Index >= s.first && l.Index <= s.last()
			return there && s.records[l.Index-1] == l.Record, s
		}
	}
	return false, s
}

// The calls with information. One without an answer never returned; the log's contents show whether it happened.
func operations(lines []line) []porcupine.Operation {
	place := map[uint64]uint64{}
	for _, l := range lines {
		for _, pair := range l.Log {
			place[pair[1]] = pair[0]
		}
	}
	var ops []porcupine.Operation
	for _, l := range lines {
		if l.Op == "" || l.Told == "refused" || (l.Op == "read" && !l.Linear) {
			continue
		}
		end := int64(math.MaxInt64)
		if l.Return != nil {
			end = *l.Return
		}
		if l.Told == "nothing" {
			if l.Op == "read" || l.Op == "info" {
				continue
			}
			if l.Op == "append" {
				first, there := place[l.Records[0]]
				if !there {
					continue
				}
				l.First = first
			}
		}
		if l.Op == "append" && l.First == 0 {
			l.First = place[l.Records[0]]
		}
		ops = append(ops, porcupine.Operation{ClientId: int(l.Client), Input: l, Call: l.Call, Return: end})
	}
	return ops
}

func read(name string) ([]line, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var lines []line
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 64<<20)
	for scanner.Scan() {
		var l line
		if err := json.Unmarshal(scanner.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		lines = append(lines, l)
	}
	return lines, scanner.Err()
}

func main() {
	var good, bad, unknown, calls int
	for _, name := range os.Args[1:] {
		lines, err := read(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		ops := operations(lines)
		calls += len(ops)
		switch porcupine.CheckOperationsTimeout(model, ops, time.Minute) {
		case porcupine.Ok:
			good++
		case porcupine.Unknown:
			unknown++
			fmt.Printf("%s: no answer within a minute\n", name)
		default:
			bad++
			fmt.Printf("%s: NOT LINEARIZABLE\n", name)
		}
	}
	fmt.Printf("porcupine: %d histories, %d calls: %d linearizable, %d not, %d undecided\n", good+bad+unknown, calls, good, bad, unknown)
	if bad > 0 || good == 0 {
		os.Exit(1)
	}
}
