package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"gaia/domain"
	"gaia/internal/render"
)

func (a *app) ticketComment() *cobra.Command {
	var typ, file string
	cmd := &cobra.Command{
		Use:   "comment [TICKET] {TEXT | -F FILE}",
		Short: "Add a comment to a ticket",
		Long: `Add a comment to a ticket. The type tells readers what it is; these are usual: comment, qualification, spec, plan,
debug_diagnose, summary, acceptance, scenario, test.`,
		Example: `  gaia ticket comment SHOP-7 "Please keep the old colours as the default"
  gaia ticket comment --type spec -F spec.md        # inside a run`,
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: a.completeFirst(a.ticketNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			want := 1
			if file != "" {
				want = 0
			}
			ref, rest, err := a.ticketArg(args, want)
			if err != nil {
				return err
			}
			if len(rest) != want {
				return usagef("give the text either as an argument or with -F\nUsage: %s", cmd.UseLine())
			}
			body := ""
			if want == 1 {
				body = rest[0]
			}
			if body, err = a.text(body, file); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			k, err := c.Ticket(cmd.Context(), ref)
			if err != nil {
				return err
			}
			m, err := c.AddComment(cmd.Context(), domain.Comment{Ticket: k.ID, Type: typ, Body: body})
			if err != nil {
				return err
			}
			return a.print(render.Value{Data: m, Names: []string{m.ID}, Table: func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s: %s added\n", render.Clean(k.Identifier), render.Clean(m.Type))
				return err
			}})
		},
	}
	cmd.Flags().StringVarP(&typ, "type", "t", domain.DefaultCommentType, "what it is")
	textFlag(cmd, &file, "text")
	return cmd
}
