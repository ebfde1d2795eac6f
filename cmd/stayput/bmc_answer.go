package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"
)

// answerFormat is how an answer is printed; a flag that is checked before anything is done.
type answerFormat string

// The formats.
const (
	answerTable answerFormat = "table"
	answerJSON  answerFormat = "json"
	answerYAML  answerFormat = "yaml"
)

var errAnswerFormat = errors.New("use table, json or yaml")

func (f *answerFormat) String() string { return string(*f) }

func (f *answerFormat) Type() string { return "string" }

func (f *answerFormat) Set(text string) error {
	switch answerFormat(text) {
	case answerTable, answerJSON, answerYAML:
		*f = answerFormat(text)

		return nil
	default:
		return errAnswerFormat
	}
}

// print prints an answer, whose rows are only for the table.
func (f *answerFormat) print(out io.Writer, answer any, rows [][]string) error {
	switch *f {
	case answerJSON:
		data, err := json.MarshalIndent(answer, "", "  ")
		if err != nil {
			return fmt.Errorf("encoding the answer: %w", err)
		}

		return writeText(out, string(data)+"\n")
	case answerYAML:
		data, err := yaml.Marshal(answer)
		if err != nil {
			return fmt.Errorf("encoding the answer: %w", err)
		}

		return writeText(out, string(data))
	case answerTable:
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0) //nolint:mnd // two spaces between columns
	for _, row := range rows {
		if err := writeText(table, strings.Join(row, "\t")+"\n"); err != nil {
			return err
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}

	return nil
}
