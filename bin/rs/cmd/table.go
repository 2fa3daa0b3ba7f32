package cmd

import (
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// columns is a table of plain columns: no borders, so that lines can be cut and
// searched with the usual tools.
type columns struct{ w table.Writer }

func newTable(header ...any) *columns {
	w := table.NewWriter()
	style := table.StyleDefault
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Options = table.Options{}
	style.Format.Header = text.FormatDefault
	w.SetStyle(style)
	w.SuppressTrailingSpaces()
	w.AppendHeader(table.Row(header))
	return &columns{w}
}

func (c *columns) row(cells ...any) { c.w.AppendRow(table.Row(cells)) }

// rightAlign puts the numbers of the columns (from 1) under each other.
func (c *columns) rightAlign(cols ...int) {
	var cfg []table.ColumnConfig
	for _, n := range cols {
		cfg = append(cfg, table.ColumnConfig{Number: n, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	c.w.SetColumnConfigs(cfg)
}

func (c *columns) String() string { return c.w.Render() + "\n" }
