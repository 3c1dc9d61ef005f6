//! The Debian mirror of this machine, from the configuration of apt. All functions but [`mirror`] are pure.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Releases of Debian that a machine may run. The archive of one of them has the others too.
const RELEASES: [&str; 6] = ["bookworm", "trixie", "forky", "sid", "stable", "testing"];

/// The first Debian archive in the configuration of apt.
pub(super) fn mirror(apt: &Path) -> Result<String> {
    let mut files = vec![apt.join("sources.list")];
    if let Ok(entries) = fs::read_dir(apt.join("sources.list.d")) {
        let mut more: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        more.sort();
        files.extend(more);
    }
    for file in files {
        let parse = match file.extension().and_then(|end| end.to_str()) {
            Some("list") => one_line,
            Some("sources") => deb822,
            _ => continue,
        };
        let Ok(text) = fs::read_to_string(&file) else { continue };
        if let Some(uri) = parse(&text) {
            return Ok(uri);
        }
    }
    bail!(
        "no Debian archive in {}: images are made of Debian packages, so apt needs a source for them",
        apt.display()
    )
}

/// `deb [options] URI suite component…`
fn one_line(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let line = line.split('#').next()?.trim().strip_prefix("deb")?;
        let rest = line.strip_prefix([' ', '\t'])?.trim_start();
        let rest = match rest.strip_prefix('[') {
            Some(options) => options.split_once(']')?.1,
            None => rest,
        };
        let mut words = rest.split_whitespace();
        let (uri, suite) = (words.next()?, words.next()?);
        chosen(&[uri], &[suite])
    })
}

/// Paragraphs of `Field: values`, where a line that starts with a blank goes on with the field above.
fn deb822(text: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    lines.split(|line| line.trim().is_empty()).find_map(|paragraph| {
        let values = |field: &str| -> Vec<&str> {
            let mut wanted = false;
            let mut values = Vec::new();
            for line in paragraph {
                let rest = if line.starts_with([' ', '\t']) {
                    line
                } else {
                    let Some((name, rest)) = line.split_once(':') else {
                        continue;
                    };
                    wanted = name.eq_ignore_ascii_case(field);
                    rest
                };
                if wanted {
                    values.extend(rest.split_whitespace());
                }
            }
            values
        };
        let off = values("Enabled")
            .first()
            .is_some_and(|value| value.eq_ignore_ascii_case("no"));
        let binary = values("Types").contains(&"deb");
        (binary && !off)
            .then(|| chosen(&values("URIs"), &values("Suites")))
            .flatten()
    })
}

/// Security and update suites are left out: their archive may hold nothing else.
fn chosen(uris: &[&str], suites: &[&str]) -> Option<String> {
    let debian = suites.iter().any(|suite| RELEASES.contains(suite));
    let uri = uris.iter().find(|uri| uri.contains("://"))?;
    debian.then(|| uri.trim_end_matches('/').to_owned())
}

/// Reads apt's folder of this machine.
pub(super) fn of_this_machine() -> Result<String> {
    mirror(Path::new("/etc/apt")).context("cannot determine the source of Debian packages")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_one_line_source_may_have_options_and_comments() {
        let text = "\
            # deb http://old.example/debian bookworm main\n\
            deb-src http://src.example/debian bookworm main\n\
            deb http://security.example/debian-security bookworm-security main\n\
            deb [arch=amd64 signed-by=/k.gpg]  http://mirror.example/debian/  bookworm main # ours\n";
        assert_eq!(one_line(text).as_deref(), Some("http://mirror.example/debian"));
    }

    #[test]
    fn a_deb822_source_may_list_several_suites_and_be_switched_off() {
        let text = "\
Types: deb\nURIs: http://off.example/debian\nSuites: bookworm\nEnabled: no\n\n\
Types: deb-src\nURIs: http://src.example/debian\nSuites: bookworm\n\n\
Types: deb deb-src\n# URIs: http://comment.example/debian\nURIs: http://mirror.example/debian/\n\
Suites: bookworm-updates\n bookworm\nComponents: main\n";
        assert_eq!(deb822(text).as_deref(), Some("http://mirror.example/debian"));
    }

    #[test]
    fn other_vendors_are_ignored() {
        assert_eq!(
            one_line("deb https://packages.example/apt cloud-sdk-bookworm main\n"),
            None
        );
        assert_eq!(
            deb822("Types: deb\nURIs: https://node.example\nSuites: nodistro\n"),
            None
        );
        assert_eq!(
            deb822("Types: deb\nURIs: http://sec.example\nSuites: bookworm-security\n"),
            None
        );
    }

    #[test]
    fn the_main_file_comes_before_the_folder_and_foreign_endings_do_not_count() {
        let apt = tempfile::tempdir().unwrap();
        let folder = apt.path().join("sources.list.d");
        fs::create_dir(&folder).unwrap();
        fs::write(
            folder.join("a.list.disabled"),
            "deb http://disabled.example bookworm main\n",
        )
        .unwrap();
        fs::write(
            folder.join("b.sources"),
            "Types: deb\nURIs: http://b.example\nSuites: trixie\n",
        )
        .unwrap();
        assert_eq!(mirror(apt.path()).unwrap(), "http://b.example");
        fs::write(apt.path().join("sources.list"), "deb http://a.example bookworm main\n").unwrap();
        assert_eq!(mirror(apt.path()).unwrap(), "http://a.example");
    }

    #[test]
    fn without_a_source_the_error_names_what_is_missing() {
        let apt = tempfile::tempdir().unwrap();
        let error = mirror(apt.path()).unwrap_err().to_string();
        assert!(error.contains("no Debian archive"), "{error}");
    }
}
