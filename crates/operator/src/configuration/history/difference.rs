//! Renders the changes between two revisions as a unified diff of their files, shortened for people.

use std::{collections::BTreeSet, fmt::Write as _, time::Duration};

use similar::TextDiff;

use crate::cluster::deliver::Files;

/// Twenty entries of this size are well below the megabyte that a ConfigMap can contain.
const MAX_LENGTH: usize = 12 * 1024;
/// An exact comparison of files of megabytes without a common line takes seconds, and its result is not useful.
const DIFF_TIMEOUT: Duration = Duration::from_millis(100);
const CONTEXT: usize = 2;

pub(crate) fn render_difference(old: &Files, new: &Files) -> String {
    let mut text = String::new();
    let names: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    for name in names {
        let (before, after) = (old.get(name), new.get(name));
        if before == after {
            continue;
        }
        let content = |file: Option<&slurm::revision::File>| {
            let bytes = file.map(|file| file.content.as_slice()).unwrap_or_default();
            std::str::from_utf8(bytes).ok().map(str::to_owned)
        };
        let path = |file: Option<&slurm::revision::File>| {
            file.map_or_else(|| "/dev/null".to_owned(), |_| name.as_str().to_owned())
        };
        let (Some(from), Some(to)) = (content(before), content(after)) else {
            let _ = writeln!(text, "Binary file {name} differs");
            continue;
        };
        if from == to {
            let _ = writeln!(text, "Only the mode of {name} differs");
            continue;
        }
        let diff = TextDiff::configure().timeout(DIFF_TIMEOUT).diff_lines(&from, &to);
        let mut unified = diff.unified_diff();
        let unified = unified.context_radius(CONTEXT).header(&path(before), &path(after));
        let _ = write!(text, "{unified}");
    }
    shortened(text)
}

fn shortened(text: String) -> String {
    if text.len() <= MAX_LENGTH {
        return text;
    }
    let end = text.floor_char_boundary(MAX_LENGTH);
    let kept = text.get(..end).unwrap_or_default();
    // Cut at a line, unless there is only one.
    let kept = kept.rfind('\n').and_then(|end| kept.get(..=end)).unwrap_or(kept);
    let left = text.get(kept.len()..).unwrap_or_default().lines().count();
    format!("{}\n… {left} more lines\n", kept.trim_end_matches('\n'))
}

#[cfg(test)]
mod tests {
    use slurm::revision::{File, FileName};

    use super::*;

    fn files(files: &[(&str, File)]) -> Files {
        let named = files
            .iter()
            .map(|(name, file)| (FileName::new(*name).unwrap(), file.clone()));
        named.collect()
    }

    #[test]
    fn changed_lines_are_shown_with_context() {
        let conf = |time: u32| {
            let text = format!("A=1\nB=2\nC=3\nPartitionName=x MaxTime={time}\nD=4\nE=5\nF=6\n");
            files(&[("slurm.conf", File::config(text))])
        };
        insta::assert_snapshot!(render_difference(&conf(1), &conf(2)), @r"
        --- slurm.conf
        +++ slurm.conf
        @@ -2,5 +2,5 @@
         B=2
         C=3
        -PartitionName=x MaxTime=1
        +PartitionName=x MaxTime=2
         D=4
         E=5
        ");
    }

    #[test]
    fn files_are_added_removed_made_executable_and_may_be_binary() {
        let old = files(&[
            ("gone.conf", File::config("x\n")),
            ("prolog.sh", File::config("y\n")),
            ("data", File::config([0xff])),
        ]);
        let new = files(&[
            ("new.conf", File::config("z\n")),
            ("prolog.sh", File::script("y\n")),
            ("data", File::config([0xfe])),
        ]);
        insta::assert_snapshot!(render_difference(&old, &new), @r"
        Binary file data differs
        --- gone.conf
        +++ /dev/null
        @@ -1 +0,0 @@
        -x
        --- /dev/null
        +++ new.conf
        @@ -0,0 +1 @@
        +z
        Only the mode of prolog.sh differs
        ");
    }

    #[test]
    fn a_long_difference_is_cut_at_a_line_with_a_note() {
        let long = "Ä\n".repeat(5000);
        let text = render_difference(&Files::default(), &files(&[("long.conf", File::config(long))]));
        assert!(text.len() < MAX_LENGTH + 100, "{}", text.len());
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("… ") && last.ends_with(" more lines"), "{last}");
        let one_line = render_difference(
            &Files::default(),
            &files(&[("long.conf", File::config("ä".repeat(100_000)))]),
        );
        assert!(one_line.len() < MAX_LENGTH + 100);
    }
}
