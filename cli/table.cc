#include "table.h"

#include <algorithm>

#include "text.h"

namespace penstock::cli {
namespace {

constexpr std::string_view kIndent = "  ";
constexpr std::string_view kBetween = "  ";

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::add(std::vector<Cell> row) {
  rows_.push_back(std::move(row));
}

std::vector<std::size_t> Table::column_widths() const {
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) widths.push_back(display_width(column.title));
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i].text));
  }
  return widths;
}

void Table::print(Output& out, const Terminal& terminal) const {
  const std::vector<std::size_t> widths = column_widths();
  print_titles(out, terminal, widths);
  for (const auto& row : rows_) print_row(out, terminal, row, widths);
}

void Table::print_titles(Output& out, const Terminal& terminal, const std::vector<std::size_t>& widths) const {
  std::vector<Cell> titles;
  for (const Column& column : columns_) titles.emplace_back(Tone::kDim, column.title);
  const bool untitled = std::all_of(titles.begin(), titles.end(), [](const Cell& cell) { return cell.text.empty(); });
  if (!untitled) print_row(out, terminal, titles, widths);
}

void Table::print_row(Output& out, const Terminal& terminal, const std::vector<Cell>& row,
                      const std::vector<std::size_t>& widths) const {
  std::string line;
  std::string spaces(kIndent);  // owed before the next text, so that no line ends in them
  for (std::size_t i = 0; i < row.size(); ++i) {
    const Column& column = columns_[i];
    const std::string padding(widths[i] - display_width(row[i].text), ' ');
    if (column.align == Align::kRight) spaces += padding;
    if (!row[i].text.empty()) {
      line += spaces;
      spaces.clear();
      line += terminal.paint(row[i].tone == Tone::kPlain ? column.tone : row[i].tone, row[i].text);
    }
    if (column.align == Align::kLeft) spaces += padding;
    spaces += kBetween;
  }
  line += '\n';
  out.write(line);
}

}  // namespace penstock::cli
