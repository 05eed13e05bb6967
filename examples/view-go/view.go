package main

import (
	"database/sql"
	"errors"
	"fmt"

	_ "modernc.org/sqlite" // SQLite in Go: no C compiler is needed
)

// The changes of a run of records and the index of its last one are written in one transaction. Whenever the program dies, the
// file holds the records up to `applied`, each once, and none after them.
const schema = `
	CREATE TABLE IF NOT EXISTS lines (idx INTEGER PRIMARY KEY, text TEXT NOT NULL);
	CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
	-- One row: which log the tables are of, and the last record that is in them.
	CREATE TABLE IF NOT EXISTS position (id INTEGER PRIMARY KEY CHECK (id = 1), log TEXT NOT NULL, applied INTEGER NOT NULL);
`

// A power cut can take the last transactions, whole ones, and the index with them: the log sends their records again.
const pragmas = "?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=busy_timeout(10000)"

type view struct {
	db *sql.DB
	// The log that the tables are of; empty: none yet.
	log string
	// The last record in the tables; 0: none.
	applied uint64
}

func openView(file string) (*view, error) {
	db, err := sql.Open("sqlite", file+pragmas)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	if _, err = db.Exec(schema); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	v := &view{db: db}
	err = db.QueryRow("SELECT log, applied FROM position").Scan(&v.log, &v.applied)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, errors.Join(err, db.Close())
	}
	return v, nil
}

func (v *view) close() error { return v.db.Close() }

// apply takes consecutive records of this log, from first on. It applies all of them, or none.
func (v *view) apply(log string, first uint64, records [][]byte) error {
	tx, err := v.db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing once it is committed
	// The bytes as they arrived, which a bound text need not be.
	line, err := tx.Prepare("INSERT INTO lines (idx, text) VALUES (?, CAST(? AS TEXT))")
	if err != nil {
		return err
	}
	defer line.Close()
	counts := map[string]int64{}
	for n, record := range records {
		if _, err := line.Exec(int64(first)+int64(n), record); err != nil {
			return err
		}
		for _, word := range words(record) {
			counts[word]++
		}
	}
	count, err := tx.Prepare(`INSERT INTO words (word, count) VALUES (?, ?)
		ON CONFLICT (word) DO UPDATE SET count = count + excluded.count`)
	if err != nil {
		return err
	}
	defer count.Close()
	for word, more := range counts {
		if _, err := count.Exec(word, more); err != nil {
			return err
		}
	}
	applied := first + uint64(len(records)) - 1
	_, err = tx.Exec("INSERT OR REPLACE INTO position (id, log, applied) VALUES (1, ?, ?)", log, int64(applied))
	if err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	v.log, v.applied = log, applied
	return nil
}

func (v *view) summary() (string, error) {
	var records, distinct, all uint64
	err := v.db.QueryRow("SELECT count(*) FROM lines").Scan(&records)
	if err == nil {
		err = v.db.QueryRow("SELECT count(*), coalesce(sum(count), 0) FROM words").Scan(&distinct, &all)
	}
	text := fmt.Sprintf("%d records, %d distinct words, %d words, last index %d", records, distinct, all, v.applied)
	return text, err
}

// words returns the runs of ASCII letters, in lower case.
func words(line []byte) []string {
	var found []string
	var word []byte
	for n := 0; n <= len(line); n++ {
		if n < len(line) {
			if c := line[n] | 0x20; c >= 'a' && c <= 'z' {
				word = append(word, c)
				continue
			}
		}
		if len(word) > 0 {
			found = append(found, string(word))
			word = word[:0]
		}
	}
	return found
}
