#include "table.h"

#include <algorithm>
#include <numeric>

#include "text.h"

namespace penstock::cli {
namespace {

constexpr std::string_view kIndent = "  ";
constexpr std::string_view kBetween = "  ";
constexpr std::size_t kLeastLast = 16;

// Makes columns narrower until they fit: the last one first, which is a name or a sentence, then the widest.
void fit(std::vector<std::size_t>& widths, std::size_t terminal_width) {
  const std::size_t spaces = kIndent.size() + kBetween.size() * (widths.size() - 1);
  const std::size_t available = std::max(terminal_width, spaces + widths.size()) - spaces;
  std::size_t sum = std::accumulate(widths.begin(), widths.end(), std::size_t{0});
  if (terminal_width == 0 || sum <= available) return;
  const std::size_t others = sum - widths.back();
  widths.back() = std::min(widths.back(), std::max(kLeastLast, available > others ? available - others : 0));
  for (sum = others + widths.back(); sum > available; --sum) --*std::max_element(widths.begin(), widths.end());
}

// A row as the lines that it takes where cells are wider than their columns.
std::vector<std::vector<Cell>> lines_of(const std::vector<Cell>& row, const std::vector<std::size_t>& widths) {
  std::vector<std::vector<Cell>> lines(1);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::vector<std::string> parts = wrap(row[i].text, widths[i]);
    if (lines.size() < parts.size()) lines.resize(parts.size());
    for (std::size_t k = 0; k < parts.size(); ++k) {
      lines[k].resize(i, Cell(""));
      lines[k].emplace_back(row[i].tone, parts[k]);
    }
  }
  return lines;
}

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
  std::vector<std::size_t> widths = column_widths();
  fit(widths, terminal.width);
  print_titles(out, terminal, widths);
  for (const auto& row : rows_) {
    for (const auto& line : lines_of(row, widths)) print_row(out, terminal, line, widths);
  }
}

void Table::print_titles(Output& out, const Terminal& terminal, const std::vector<std::size_t>& widths) const {
  std::vector<Cell> titles;
  for (const Column& column : columns_) titles.emplace_back(Tone::kDim, column.title);
  const bool untitled = std::all_of(titles.begin(), titles.end(), [](const Cell& cell) { return cell.text.empty(); });
  if (untitled) return;
  for (const auto& line : lines_of(titles, widths)) print_row(out, terminal, line, widths);
}

void Table::print_row(Output& out, const Terminal& terminal, const std::vector<Cell>& row,
                      const std::vector<std::size_t>& widths) const {
  std::string line;
  std::string spaces(kIndent);  // owed before the next text, so that no line ends in them
  for (std::size_t i = 0; i < row.size(); ++i) {
    const Column& column = columns_[i];
    // A character of two columns may stand in a column of one.
    const std::size_t used = std::min(display_width(row[i].text), widths[i]);
    const std::string padding(widths[i] - used, ' ');
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
