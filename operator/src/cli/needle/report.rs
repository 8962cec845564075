//! Shows what was found: a table for people, a document for programs.
//! In: the plan and its cells. Out: text on stdout; whether enough was found.

use std::io::Write as _;
use std::time::Duration;

use comfy_table::{Cell as TableCell, CellAlignment, Table, presets};
use serde::Serialize;

use super::super::Output;
use super::Thinking;
use super::trial::{Cell, Plan};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    url: String,
    model: String,
    seed: u64,
    thinking: &'static str,
    right: usize,
    asked: usize,
    share: f64,
    min: f64,
    passed: bool,
    cells: Vec<CellReport>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CellReport {
    length: u32,
    depth: &'static str,
    right: usize,
    asked: usize,
    /// As the server counted them, of each question.
    prompt_tokens: Vec<u64>,
    /// The median.
    first_token_ms: u64,
    misses: Vec<Miss>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Miss {
    expected: String,
    answer: String,
    prompt_tokens: u64,
}

impl Report {
    pub(super) fn new(url: &str, plan: &Plan, min: f64, cells: Vec<Cell>) -> Self {
        let right: usize = cells.iter().map(Cell::right).sum();
        let asked: usize = cells.iter().map(|cell| cell.asked.len()).sum();
        #[expect(clippy::cast_precision_loss, reason = "a number of questions is far below 2^52")]
        let share = right as f64 / asked.max(1) as f64;
        Self {
            url: url.to_owned(),
            model: plan.model.clone(),
            seed: plan.seed,
            thinking: match plan.thinking {
                Thinking::On => "on",
                Thinking::Off => "off",
                Thinking::Default => "default",
            },
            right,
            asked,
            share,
            min,
            passed: share >= min,
            cells: cells.into_iter().map(CellReport::new).collect(),
        }
    }

    pub(super) fn passed(&self) -> bool {
        self.passed
    }

    pub(super) fn print(&self, output: Output) -> std::io::Result<()> {
        let text = match output {
            Output::Table => self.table(),
            Output::Json => format!("{}\n", serde_json::to_string_pretty(self)?),
        };
        std::io::stdout().write_all(text.as_bytes())
    }

    pub(super) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        let depths = self.depths();
        let header = std::iter::once("prompt tokens".to_owned());
        table.set_header(header.chain(depths.iter().map(|depth| format!("fact at the {depth}"))));
        for row in self.cells.chunks(depths.len().max(1)) {
            let cells = std::iter::once(tokens_of(row)).chain(row.iter().map(CellReport::summary));
            table.add_row(cells.map(|text| TableCell::new(text).set_alignment(CellAlignment::Right)));
        }
        let mut text = format!("{}, asked at {}\n{table}\n", self.model, self.url);
        for cell in &self.cells {
            for miss in &cell.misses {
                let answer: String = miss.answer.chars().take(80).collect();
                text.push_str(&format!(
                    "missed at {} tokens, {}: expected {}, answer {answer:?}\n",
                    grouped(miss.prompt_tokens),
                    cell.depth,
                    miss.expected
                ));
            }
        }
        let verdict = if self.passed { "enough" } else { "too few" };
        text.push_str(&format!(
            "{} of {} found = {:.0} %: {verdict} (at least {:.0} % wanted)\n",
            self.right,
            self.asked,
            100.0 * self.share,
            100.0 * self.min
        ));
        text
    }

    fn depths(&self) -> Vec<&'static str> {
        let first = self.cells.first().map(|cell| cell.length);
        self.cells.iter().take_while(|cell| Some(cell.length) == first).map(|cell| cell.depth).collect()
    }
}

impl CellReport {
    fn new(cell: Cell) -> Self {
        let missed = cell.asked.iter().filter(|asked| !asked.right);
        Self {
            length: cell.length,
            depth: cell.depth.name(),
            right: cell.right(),
            asked: cell.asked.len(),
            prompt_tokens: cell.asked.iter().map(|asked| asked.prompt_tokens).collect(),
            first_token_ms: u64::try_from(median_first_token(&cell).as_millis()).unwrap_or(u64::MAX),
            misses: missed
                .map(|asked| Miss {
                    expected: asked.expected.clone(),
                    answer: asked.answer.clone(),
                    prompt_tokens: asked.prompt_tokens,
                })
                .collect(),
        }
    }

    fn summary(&self) -> String {
        format!("{}/{}, first token {}", self.right, self.asked, duration(self.first_token_ms))
    }
}

/// One line when a cell is complete.
pub(super) fn progress(cell: &Cell) -> String {
    let milliseconds = u64::try_from(median_first_token(cell).as_millis()).unwrap_or(u64::MAX);
    format!(
        "{} tokens, fact at the {}: {} of {} found, first token after {}",
        cell.length,
        cell.depth.name(),
        cell.right(),
        cell.asked.len(),
        duration(milliseconds)
    )
}

fn median_first_token(cell: &Cell) -> Duration {
    let mut times: Vec<Duration> = cell.asked.iter().map(|asked| asked.first_token).collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// The counted lengths of a row: `3,987` or `3,940-4,051`.
fn tokens_of(row: &[CellReport]) -> String {
    let counted = || row.iter().flat_map(|cell| &cell.prompt_tokens).copied();
    let (least, most) = (counted().min().unwrap_or(0), counted().max().unwrap_or(0));
    if least == most { grouped(least) } else { format!("{}-{}", grouped(least), grouped(most)) }
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap_or("")).collect();
    groups.join(",")
}

fn duration(milliseconds: u64) -> String {
    if milliseconds < 1000 {
        format!("{milliseconds} ms")
    } else {
        let tenths = milliseconds / 100;
        format!("{}.{} s", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::Depth;
    use super::super::trial::Asked;
    use super::*;

    fn asked(right: bool, prompt_tokens: u64, milliseconds: u64) -> Asked {
        Asked {
            expected: "0482".to_owned(),
            answer: if right { "0482" } else { "I do not know." }.to_owned(),
            right,
            prompt_tokens,
            first_token: Duration::from_millis(milliseconds),
        }
    }

    #[test]
    fn the_table_shows_where_recall_ends() {
        let cell = |length, depth, asked: [Asked; 2]| Cell { length, depth, asked: asked.to_vec() };
        let cells = vec![
            cell(1000, Depth::Start, [asked(true, 998, 80), asked(true, 1003, 90)]),
            cell(1000, Depth::End, [asked(true, 1000, 85), asked(true, 1001, 70)]),
            cell(16_000, Depth::Start, [asked(false, 15_988, 2300), asked(true, 15_988, 2400)]),
            cell(16_000, Depth::End, [asked(true, 15_988, 2310), asked(true, 15_988, 2290)]),
        ];
        let plan = Plan {
            model: "needle".to_owned(),
            lengths: vec![1000, 16_000],
            depths: vec![Depth::Start, Depth::End],
            trials: 2,
            thinking: Thinking::Off,
            seed: 1,
        };
        let report = Report::new("http://127.0.0.1:8000/v1", &plan, 0.9, cells);
        expect![[r#"
            needle, asked at http://127.0.0.1:8000/v1
            ─────────────────────────────────────────────────────────────────
             prompt tokens   fact at the start        fact at the end        
            ═════════════════════════════════════════════════════════════════
                 998-1,003   2/2, first token 90 ms   2/2, first token 85 ms 
            ─────────────────────────────────────────────────────────────────
                    15,988   1/2, first token 2.4 s   2/2, first token 2.3 s 
            ─────────────────────────────────────────────────────────────────
            missed at 15,988 tokens, start: expected 0482, answer "I do not know."
            7 of 8 found = 88 %: too few (at least 90 % wanted)
        "#]]
        .assert_eq(&report.table());
    }
}
