// Table: rows of cells in aligned columns, for people.
#pragma once

#include <string>
#include <vector>

#include "output.h"
#include "terminal.h"

namespace penstock::cli {

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kLeft;
  Tone tone = Tone::kPlain;
};

struct Cell {
  Cell(std::string cell_text) : text(std::move(cell_text)) {}
  Cell(const char* cell_text) : text(cell_text) {}
  Cell(Tone cell_tone, std::string cell_text) : text(std::move(cell_text)), tone(cell_tone) {}

  std::string text;
  Tone tone = Tone::kPlain;  // kPlain: the column's
};

class Table {
 public:
  explicit Table(std::vector<Column> columns);

  // One cell per column; missing ones at the end are empty.
  void add(std::vector<Cell> row);
  // A line between groups of rows.
  void add_gap() { rows_.emplace_back(); }

  // The last column is not padded, so that long names never break the others. Titles are left out when all are empty.
  void print(Output& out, const Terminal& terminal) const;

 private:
  void print_row(Output& out, const Terminal& terminal, const std::vector<Cell>& row,
                 const std::vector<std::size_t>& widths) const;
  void print_titles(Output& out, const Terminal& terminal, const std::vector<std::size_t>& widths) const;
  std::vector<std::size_t> column_widths() const;

  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;  // an empty row is a gap
};

}  // namespace penstock::cli
