package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/yaml"
)

// answerFormat is how an answer is printed; a flag that is checked before anything is done.
type answerFormat string

// The formats.
const (
	answerTable answerFormat = "table"
	answerJSON  answerFormat = outputJSON
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
	if *f == answerYAML {
		data, err := yaml.Marshal(answer)
		if err != nil {
			return fmt.Errorf("encoding the answer: %w", err)
		}

		return outputErrorOf(writeText(out, string(data)))
	}

	return outputErrorOf(printAs(out, outputFormat(*f), answer, func(out io.Writer) {
		for _, row := range rows {
			fmt.Fprintln(out, strings.Join(row, "\t"))
		}
	}))
}

// outputError says that an answer could not be printed.
type outputError struct{ err error }

func outputErrorOf(err error) error {
	if err == nil {
		return nil
	}

	return &outputError{err}
}

func (e *outputError) Error() string { return e.err.Error() }

func (e *outputError) Unwrap() error { return e.err }
