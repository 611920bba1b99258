// The graft program: parses the command line, runs one command, and turns what it raises into an
// exit code and a last line on stderr. 0: success. 1: an error. 2: a wrong command line. Never a
// signal.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cli/commands.h"

namespace {

constexpr int kError = 1;
constexpr int kUsage = 2;

// One line, without control characters: messages quote names and text out of files.
std::string one_line(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n' || c == '\t') {
      line += ' ';
    } else if (byte < 0x20 || byte == 0x7f) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  return line;
}

int report(std::string_view message, int code) {
  std::fflush(stdout);
  graft::log_line("error: " + one_line(message));
  return code;
}

// The message of the exception in flight.
std::string describe_current_exception() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return "out of memory; use a smaller batch or a shorter max_length";
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "unknown exception";
  }
}

// An exception that escapes from a thread, or from a destructor, ends here.
[[noreturn]] void terminate() {
  if (std::current_exception() != nullptr) report(describe_current_exception(), kError);
  else report("the program ended unexpectedly", kError);
  std::_Exit(kError);
}

// A page of a mapped file that is no longer there: the file was cut short while it was being read,
// or its disk failed. Only async-signal-safe calls.
extern "C" void on_bus_error(int) {
  constexpr char kMessage[] =
      "error: a mapped file could not be read (it was cut short meanwhile, or its disk failed)\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  std::_Exit(kError);
}

// "--text=" means an empty text; CLI11 would take the next argument in its place.
std::vector<std::string> split_empty_values(int argc, char** argv) {
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    if (argument.size() > 3 && argument.starts_with("--") &&
        argument.find('=') == argument.size() - 1) {
      argument.pop_back();
      arguments.push_back(std::move(argument));
      arguments.emplace_back();
    } else {
      arguments.push_back(std::move(argument));
    }
  }
  return arguments;
}

void add_commands(CLI::App& app) {
  using namespace graft;
  add_train_command(app);
  add_plan_command(app);
  add_compile_ahead_command(app);
  add_data_command(app);
  add_eval_command(app);
  add_generate_command(app);
  add_chat_command(app);
  add_tokenize_command(app);
  add_logits_command(app);
  add_merge_command(app);
  add_export_command(app);
  add_plugins_command(app);
  add_inspect_command(app);
  add_checkpoint_command(app);
  add_quantize_command(app);
}

int run(int argc, char** argv) {
  CLI::App app{
      "graft fine-tunes large language models: LoRA and full fine-tuning on this machine's CPU.",
      "graft"};
  app.set_version_flag("--version", std::string("graft ") + GRAFT_VERSION);
  app.set_help_flag("-h,--help", "Print this page, or that of a command, and leave");
  app.require_subcommand(1);
  app.footer("graft COMMAND --help explains a command. Exit codes: 0 success, 1 error, 2 usage.");
  add_commands(app);
  try {
    std::vector<std::string> arguments = split_empty_values(argc, argv);
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes a stack
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& e) {
    // --help and --version arrive as exceptions too.
    if (e.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      std::ostringstream page;
      app.exit(e, page, page);
      graft::print_text(page.str());
      return 0;
    }
    std::string command = "graft";
    for (const CLI::App* chosen : app.get_subcommands()) command += " " + chosen->get_name();
    return report(fmt::format("{}; see {} --help", one_line(e.what()), command), kUsage);
  }
  return 0;
}

// Threads that wait for each other must sleep, not spin: on a machine that does anything else, a
// spinning thread holds the core that the other one needs (measured: five times slower beside a
// compiler). OpenMP reads its settings before main() begins, so the program starts itself once more
// with this one. Whoever sets the variable decides.
void restart_with_passive_waiting(char** argv) {
  constexpr const char* kVariable = "OMP_WAIT_POLICY";
  if (std::getenv(kVariable) != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  if (::setenv(kVariable, "passive", 1) != 0) return;
  ::execv("/proc/self/exe", argv);
  // Where that is not possible the program goes on, only slower.
}

// A program started without stdin, stdout or stderr would get their numbers for its own files, and
// write messages into them.
void open_standard_streams() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd > STDERR_FILENO) ::close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  restart_with_passive_waiting(argv);
  std::set_terminate(terminate);
  ::signal(SIGPIPE, SIG_IGN);  // a closed pipe is a write error like any other
  ::signal(SIGXFSZ, SIG_IGN);  // so is a limit on the size of files
  ::signal(SIGBUS, on_bus_error);
  try {
    return run(argc, argv);
  } catch (...) {
    return report(describe_current_exception(), kError);
  }
}
