// Command rows prints what is in parquet files of edm: a line for each answer,
// with the name that was asked for.
//
//	rows FOLDER
package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/parquet-go/parquet-go"
)

// A row has the columns that both kinds of files have, and the counts of one.
type row struct {
	Label0 *string `parquet:"label0,optional"`
	Label1 *string `parquet:"label1,optional"`
	Label2 *string `parquet:"label2,optional"`
	OK     uint64  `parquet:"ok_count,optional"`
	NX     uint64  `parquet:"nx_count,optional"`
	Fail   uint64  `parquet:"fail_count,optional"`
}

func main() {
	err := filepath.WalkDir(os.Args[1], func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(path) != ".parquet" {
			return err
		}
		return show(path)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func show(path string) error {
	rows, err := parquet.ReadFile[row](path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, r := range rows {
		var labels []string
		for _, l := range []*string{r.Label2, r.Label1, r.Label0} {
			if l != nil {
				labels = append(labels, *l)
			}
		}
		name := strings.Join(labels, ".")
		if strings.HasPrefix(filepath.Base(path), "dns_session") {
			fmt.Println("session", name)
			continue
		}
		for range r.OK + r.NX + r.Fail {
			fmt.Println("histogram", name)
		}
	}
	return nil
}
