//! Tables with aligned columns. Nothing is wrapped or cut, so that `grep` finds it. Pure.

/// The space between two columns.
const GAP: &str = "   ";
const RESET: &str = "\u{1b}[0m";

/// The meaning of a cell, shown by its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Good,
    Doubtful,
    Bad,
}

impl Tone {
    fn escape(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Good => Some("\u{1b}[32m"),
            Self::Doubtful => Some("\u{1b}[33m"),
            Self::Bad => Some("\u{1b}[31m"),
        }
    }

    /// The text in its colour.
    pub(crate) fn paint(self, text: &str, colours: bool) -> String {
        match self.escape().filter(|_| colours && !text.is_empty()) {
            Some(escape) => format!("{escape}{text}{RESET}"),
            None => text.to_owned(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

impl Cell {
    pub(crate) fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self {
            text: text.into(),
            tone,
        }
    }

    pub(crate) fn ready(ready: bool, tone_if_not: Tone) -> Self {
        if ready {
            Self::toned("True", Tone::Good)
        } else {
            Self::toned("False", tone_if_not)
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// Titles, and whether the column is in the wide table only.
    columns: Vec<(&'static str, bool)>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(columns: &[&'static str], wide: &[&'static str]) -> Self {
        let narrow = columns.iter().map(|title| (*title, false));
        Self {
            columns: narrow.chain(wide.iter().map(|title| (*title, true))).collect(),
            rows: Vec::new(),
        }
    }

    /// One cell for each column, those of the wide table last.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn render(&self, wide: bool, colours: bool) -> String {
        self.all_lines(wide, colours).concat()
    }

    /// Returns the lines without the header, each with its first cells as a key.
    pub(crate) fn lines(&self, wide: bool, colours: bool) -> Vec<(String, String)> {
        let lines = self.all_lines(wide, colours).into_iter().skip(1);
        let key = |row: &Vec<Cell>| {
            row.iter()
                .take(3)
                .map(|cell| one_line(&cell.text))
                .collect::<Vec<_>>()
                .join("   ")
        };
        self.rows.iter().map(key).zip(lines).collect()
    }

    fn all_lines(&self, wide: bool, colours: bool) -> Vec<String> {
        let shown = |row: &[Cell]| -> Vec<Cell> {
            let cells = row.iter().zip(&self.columns);
            cells
                .filter(|(_, (_, only_wide))| wide || !only_wide)
                .map(|(cell, _)| Cell::toned(one_line(&cell.text), cell.tone))
                .collect()
        };
        let titles: Vec<Cell> = self.columns.iter().map(|(title, _)| Cell::from(*title)).collect();
        let rows: Vec<Vec<Cell>> = std::iter::once(&titles)
            .chain(&self.rows)
            .map(|row| shown(row))
            .collect();
        let count = rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..count)
            .map(|at| rows.iter().filter_map(|row| row.get(at)).map(width).max().unwrap_or(0))
            .collect();
        rows.iter().map(|row| render_line(row, &widths, colours)).collect()
    }
}

fn render_line(row: &[Cell], widths: &[usize], colours: bool) -> String {
    let mut line = String::new();
    for (at, (cell, widest)) in row.iter().zip(widths).enumerate() {
        if at > 0 {
            line.push_str(GAP);
        }
        line.push_str(&cell.tone.paint(&cell.text, colours));
        line.extend(std::iter::repeat_n(' ', widest.saturating_sub(width(cell))));
    }
    line.truncate(line.trim_end().len());
    line.push('\n');
    line
}

fn width(cell: &Cell) -> usize {
    cell.text.chars().count()
}

/// Removes line ends and control characters; an empty cell becomes a dash, so that columns can be counted.
fn one_line(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let plain = plain.trim();
    if plain.is_empty() {
        "-".to_owned()
    } else {
        plain.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["NAME", "STATE"], &["REASON"]);
        table.row(vec!["compute".into(), Cell::toned("UP", Tone::Good), "".into()]);
        table.row(vec![
            "a".into(),
            Cell::toned("DRAIN", Tone::Bad),
            "disk\nswap\u{1b}[31m".into(),
        ]);
        table
    }

    #[test]
    fn columns_are_aligned_and_wide_ones_are_optional() {
        assert_eq!(
            table().render(false, false),
            "NAME      STATE\ncompute   UP\na         DRAIN\n"
        );
        assert_eq!(
            table().render(true, false),
            "NAME      STATE   REASON\ncompute   UP      -\na         DRAIN   disk swap [31m\n"
        );
    }

    #[test]
    fn colours_change_no_width() {
        let painted = table().render(true, true);
        assert!(painted.contains("\u{1b}[32mUP\u{1b}[0m      -"), "{painted:?}");
        assert_eq!(
            painted
                .replace("\u{1b}[32m", "")
                .replace("\u{1b}[31m", "")
                .replace(RESET, ""),
            table().render(true, false)
        );
    }

    #[test]
    fn an_empty_table_has_a_header() {
        assert_eq!(
            Table::new(&["NAME", "STATE"], &[]).render(false, true),
            "NAME   STATE\n"
        );
    }
}
