// The commands that live in the binary itself. Each is one file `<name>_command.cpp` that adds a
// subcommand with its options and a callback. To add one: declare it here and list it in main.cpp.
//
// A callback returns normally for exit code 0, throws blockscope::UsageError for 2, any other
// exception for 1, and CLI::RuntimeError(code) to choose a code without an error line (`diff`).
#pragma once

#include <CLI/App.hpp>

namespace blockscope {

/// The papers' metrics from traces, as tables and files.
void add_analyze_command(CLI::App& app);
/// What this machine and this build can do, a verdict per line.
void add_doctor_command(CLI::App& app);
/// What a trace holds.
void add_info_command(CLI::App& app);
/// Two traces within a tolerance.
void add_diff_command(CLI::App& app);
/// The decoding trajectory as CSV or JSON.
void add_export_command(CLI::App& app);
/// A trajectory that another tool wrote, as a trace.
void add_import_command(CLI::App& app);
/// The heads that may reuse external attention, chosen from traces.
void add_calibrate_command(CLI::App& app);
/// One self-contained page of figures, tables and text.
void add_report_command(CLI::App& app);
/// Compresses, repairs and merges traces.
void add_repack_command(CLI::App& app);

}  // namespace blockscope
