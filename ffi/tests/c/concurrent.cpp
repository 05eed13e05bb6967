// The same header in C++17: owned handles, threads, and C++ idioms. argv[1]: a directory; argv[3], if given: the number
// of records that each thread appends.
#include "check.h"
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {
struct Close {
    void operator()(chiplog_log_t *log) const { chiplog_log_close(log, nullptr); }
    void operator()(chiplog_reader_t *reader) const { chiplog_reader_close(reader); }
    void operator()(chiplog_records_t *records) const { chiplog_records_close(records); }
    void operator()(chiplog_ticket_t *ticket) const { chiplog_ticket_close(ticket); }
};
template <class T> using Owned = std::unique_ptr<T, Close>;
} // namespace

int main(int argc, char **argv) {
    CHECK(argc > 1);
    const std::string path = std::string(argv[1]) + "/cpp";
    chiplog_log_options_t options;
    chiplog_log_options_for_segments(&options, sizeof options, 1 << 20);
    chiplog_log_t *opened = nullptr;
    FINE(chiplog_log_open(path.c_str(), &options, &opened, &error));
    Owned<chiplog_log_t> log(opened);

    constexpr int kThreads = 8;
    const int kEach = argc > 3 ? std::atoi(argv[3]) : 300;
    CHECK(kEach > 0 && kEach % 3 == 0);
    std::atomic<std::uint64_t> told{0};
    const auto count = [](void *context, chiplog_status_t status, const chiplog_appended_t *, const chiplog_error_t *) {
        CHECK(status == CHIPLOG_OK);
        ++*static_cast<std::atomic<std::uint64_t> *>(context);
    };
    std::atomic<bool> done{false};
    std::uint64_t seen = 0;
    std::thread tail([&] {
        chiplog_reader_t *made = nullptr;
        FINE(chiplog_log_reader(log.get(), CHIPLOG_START_FIRST, 0, &made, &error));
        Owned<chiplog_reader_t> reader(made);
        while (seen < std::uint64_t(kThreads * kEach)) {
            chiplog_records_t *read = nullptr;
            FINE(chiplog_reader_next_run(reader.get(), 1 << 16, LONG_MS, &read, &error));
            Owned<chiplog_records_t> run(read);
            const chiplog_record_t *record = nullptr;
            std::size_t records = 0;
            FINE(chiplog_records_view(run.get(), &record, &records, &error));
            for (std::size_t n = 0; n < records; n++) {
                CHECK(record[n].index == ++seen);
                const std::string_view text(static_cast<const char *>(record[n].data), record[n].length);
                CHECK(text.substr(0, 7) == "record ");
            }
        }
        done = true;
    });
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; t++) {
        threads.emplace_back([&, t] {
            for (int n = 0; n < kEach; n++) {
                const std::string text = "record " + std::to_string(t * kEach + n);
                chiplog_ticket_t *ticket = nullptr;
                FINE(chiplog_log_submit(log.get(), text.data(), text.size(), &ticket, &error));
                if (n % 3 == 0) {
                    FINE(chiplog_ticket_on_complete(ticket, count, &told, &error));
                } else {
                    Owned<chiplog_ticket_t> owned(ticket);
                    if (n % 3 == 1) {
                        FINE(chiplog_ticket_wait(owned.get(), LONG_MS, nullptr, &error));
                    }
                }
            }
        });
    }
    for (auto &thread : threads) thread.join();
    tail.join();
    CHECK(done && seen == std::uint64_t(kThreads * kEach));
    log.reset(); // each submitted append has its outcome by then
    CHECK(told == std::uint64_t(kThreads * kEach / 3));
    std::puts("all is well");
}
