//! The program `tidefs`.

fn main() -> std::process::ExitCode {
    tidefs_mount::cli::main()
}
