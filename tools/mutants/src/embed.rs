//! Embeds mutants in a source file: each is compiled in and active only if it is selected at run time.
//!
//! `a < b` becomes `(if crate::mutant::is(7) { a > b } else { a < b })`. Mutants may be nested.

use std::ops::Range;

use proc_macro2::{LineColumn, Span};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::list::{Mutant, Place};

/// How a mutant is written into the file.
enum Change {
    /// Replaces an operator by one of several others. The range of the edit includes the operands.
    Operator { operator: Range<usize>, others: Vec<(u32, String)> },
    /// Inserts text.
    Insert { text: String },
    /// Puts an expression between two texts.
    Around { before: String, after: String },
}

/// A change, and the range of bytes that it affects.
struct Edit {
    range: Range<usize>,
    change: Change,
}

/// Returns the file with the mutants that can be embedded, and the numbers of those that cannot.
pub fn embed(text: &str, mutants: &[&Mutant]) -> syn::Result<(String, Vec<u32>)> {
    let file = syn::parse_file(text)?;
    let lines = Lines::of(text);
    let mut finder = Finder { lines: &lines, mutants, edits: Vec::new(), found: Vec::new() };
    finder.visit_file(&file);
    let Finder { mut edits, found, .. } = finder;
    // Outer edits precede inner ones; of edits with the same start, the longer one is the outer one.
    edits.sort_by_key(|edit| (edit.range.start, std::cmp::Reverse(edit.range.end)));
    let lost = mutants.iter().map(|mutant| mutant.id).filter(|id| !found.contains(id)).collect();
    Ok((render(text, 0..text.len(), &edits), lost))
}

/// Returns a part of the file with its edits.
fn render(text: &str, part: Range<usize>, edits: &[Edit]) -> String {
    let mut out = String::new();
    let mut at = part.start;
    for (index, edit) in edits.iter().enumerate() {
        if edit.range.start < at || edit.range.end > part.end {
            continue;
        }
        out += &text[at..edit.range.start];
        out += &one(text, edit, &edits[index + 1..]);
        at = edit.range.end;
    }
    out + &text[at..part.end]
}

/// Returns the text of an edit, with the edits inside it.
fn one(text: &str, edit: &Edit, inner: &[Edit]) -> String {
    let Range { start, end } = edit.range;
    match &edit.change {
        Change::Insert { text } => text.clone(),
        Change::Around { before, after } => format!("{before}{}{after}", render(text, start..end, inner)),
        Change::Operator { operator, others } => {
            let left = render(text, start..operator.start, inner);
            let right = render(text, operator.end..end, inner);
            let mut out = String::from("(");
            for (id, other) in others {
                out += &format!("if crate::mutant::is({id}) {{ {left}{other}{right} }} else ");
            }
            out + &format!("{{ {left}{}{right} }})", &text[operator.clone()])
        }
    }
}

/// The start of each line of a file.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Lines<'a> {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Lines { text, starts }
    }

    /// Returns the offset of a position, in bytes; lines count from 1, characters from 0.
    fn byte(&self, line: usize, column: usize) -> usize {
        let start = self.starts[line - 1];
        let rest = &self.text[start..];
        start + rest.char_indices().nth(column).map_or(rest.len(), |(at, _)| at)
    }

    fn range(&self, span: Span) -> Range<usize> {
        let byte = |LineColumn { line, column }| self.byte(line, column);
        byte(span.start())..byte(span.end())
    }

    fn place(&self, Place { line, column }: Place) -> usize {
        self.byte(line, column - 1)
    }
}

/// Visitor that collects the edits of the mutants.
struct Finder<'a> {
    lines: &'a Lines<'a>,
    mutants: &'a [&'a Mutant],
    edits: Vec<Edit>,
    found: Vec<u32>,
}

impl<'a> Finder<'a> {
    /// Returns the mutants of one kind whose span begins at this byte.
    fn at(&self, genre: &str, byte: usize) -> Vec<&'a Mutant> {
        let here = |mutant: &&&Mutant| mutant.genre == genre && self.lines.place(mutant.span.start) == byte;
        self.mutants.iter().filter(here).copied().collect()
    }

    fn note(&mut self, mutants: &[&Mutant], range: Range<usize>, change: Change) {
        if !mutants.is_empty() {
            self.found.extend(mutants.iter().map(|mutant| mutant.id));
            self.edits.push(Edit { range, change });
        }
    }

    /// Visits a function body: its mutants return before the first statement.
    fn body(&mut self, block: &syn::Block) {
        let range = self.lines.range(block.span());
        let first = block.stmts.first().map_or(range.end - 1, |first| self.lines.range(first.span()).start);
        let inside = |mutant: &&&Mutant| {
            let start = self.lines.place(mutant.span.start);
            mutant.genre == "FnValue" && (start == range.start || start == first)
        };
        let mutants: Vec<&Mutant> = self.mutants.iter().filter(inside).copied().collect();
        let exit = |mutant: &&Mutant| {
            format!("if crate::mutant::is({}) {{ return {}; }} ", mutant.id, mutant.replacement)
        };
        let text = mutants.iter().map(exit).collect();
        let at = range.start + 1;
        self.note(&mutants, at..at, Change::Insert { text });
    }
}

/// True if an expression binds names, like the parts of a `let` chain.
fn binds(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => binds(&binary.left) || binds(&binary.right),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.body(&function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.body(&function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.body(block);
        }
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        let operator = self.lines.range(binary.op.span());
        let mutants = self.at("BinaryOperator", operator.start);
        if !binds(&binary.left) && !binds(&binary.right) {
            let others = mutants.iter().map(|mutant| (mutant.id, mutant.replacement.clone())).collect();
            let range = self.lines.range(binary.span());
            self.note(&mutants, range, Change::Operator { operator, others });
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        let operator = self.lines.range(unary.op.span());
        let mutants = self.at("UnaryOperator", operator.start);
        let others = mutants.iter().map(|mutant| (mutant.id, mutant.replacement.clone())).collect();
        let range = self.lines.range(unary.span());
        self.note(&mutants, range, Change::Operator { operator, others });
        visit::visit_expr_unary(self, unary);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let deleted = self.at("MatchArm", self.lines.range(arm.span()).start);
        let guard = arm.guard.as_ref().map(|(_, guard)| guard);
        if let Some(guard) = guard.filter(|guard| !binds(guard)) {
            let range = self.lines.range(guard.span());
            let mut replaced = self.at("MatchArmGuard", range.start);
            // `true || false && guard`: the mutants that make the guard true come first.
            replaced.sort_by_key(|mutant| mutant.replacement != "true");
            let mut before = String::new();
            for mutant in &replaced {
                before += &match mutant.replacement.as_str() {
                    "true" => format!("crate::mutant::is({}) || ", mutant.id),
                    _ => format!("!crate::mutant::is({}) && ", mutant.id),
                };
            }
            before +=
                &deleted.iter().map(|it| format!("!crate::mutant::is({}) && ", it.id)).collect::<String>();
            let all = [replaced, deleted].concat();
            self.note(&all, range, Change::Around { before: before + "(", after: ")".into() });
        } else if guard.is_none() {
            let at = self.lines.range(arm.pat.span()).end;
            let text = deleted.iter().map(|it| format!(" if !crate::mutant::is({})", it.id)).collect();
            self.note(&deleted, at..at, Change::Insert { text });
        }
        visit::visit_arm(self, arm);
    }
}
