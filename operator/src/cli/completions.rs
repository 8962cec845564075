//! `fathom completions`: what a shell needs to complete `fathom`'s commands and options.

use std::io::Write;
use std::process::ExitCode;

use clap_complete::Shell;

/// Prints the completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fathom completions bash > ~/.local/share/bash-completion/completions/fathom
  fathom completions zsh > \"${fpath[1]}/_fathom\"
  fathom completions fish > ~/.config/fish/completions/fathom.fish")]
pub(crate) struct Args {
    shell: For,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum For {
    Bash,
    Zsh,
    Fish,
}

pub(crate) fn run(args: &Args, mut command: clap::Command) -> std::io::Result<ExitCode> {
    let shell = match args.shell {
        For::Bash => Shell::Bash,
        For::Zsh => Shell::Zsh,
        For::Fish => Shell::Fish,
    };
    // Not straight to the output: the generator panics where that is a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "fathom", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
