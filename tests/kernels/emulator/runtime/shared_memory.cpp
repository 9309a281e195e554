#include "shared_memory.h"

#include <link.h>
#include <sys/mman.h>

#include <algorithm>

#include "guards.h"
#include "report.h"

// The ABI's way to thread-local variables of a module.
extern "C" void* __tls_get_addr(void*);

namespace cuemu {
namespace {

struct Module {
  uintptr_t code;  // an address in it, by which it is found
  Range globals;
  size_t thread_local_id = 0, thread_local_bytes = 0;
};

bool loaded_at(const dl_phdr_info& info, uintptr_t address, const ElfW(Phdr) & part) {
  const uintptr_t from = info.dlpi_addr + part.p_vaddr;
  return part.p_type == PT_LOAD && address >= from && address < from + part.p_memsz;
}

int look_at(dl_phdr_info* info, size_t, void* into) {
  Module& module = *static_cast<Module*>(into);
  const auto parts_end = info->dlpi_phdr + info->dlpi_phnum;
  const auto has_code = [&](const auto& part) { return loaded_at(*info, module.code, part); };
  if (std::none_of(info->dlpi_phdr, parts_end, has_code)) return 0;
  std::for_each(info->dlpi_phdr, parts_end, [&](const auto& part) {
    if (part.p_type == PT_TLS) {
      module.thread_local_id = info->dlpi_tls_modid;
      module.thread_local_bytes = part.p_memsz;
    } else if (part.p_type == PT_LOAD && (part.p_flags & PF_W)) {
      module.globals = {reinterpret_cast<unsigned char*>(info->dlpi_addr + part.p_vaddr), part.p_memsz};
    }
  });
  return 1;
}

}  // namespace

SharedMemory::SharedMemory(size_t bytes) : bytes_(bytes), mapped_((bytes + kPage - 1) / kPage * kPage + kPage) {
  map();
}

SharedMemory::~SharedMemory() {
  guards::open(first_, mapped_);
  munmap(first_, mapped_);
}

void SharedMemory::renew() {
  if (race::kWatched) {  // new memory has no past
    munmap(first_, mapped_);
    map();
  }
  memset(first_, 0xff, bytes_);  // what nobody has written is NaN
}

void SharedMemory::map() {
  void* at = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    perror("shared memory of a block");
    abort();
  }
  first_ = static_cast<unsigned char*>(at);
  guards::close(first_ + bytes_, mapped_ - bytes_);
}

Range static_shared(void (*function)(void*)) {
  Module module;
  module.code = reinterpret_cast<uintptr_t>(function);
  dl_iterate_phdr(look_at, &module);
#ifdef CUEMU_STATIC_SHARED
  return module.globals;
#else
  if (!module.thread_local_id) return {};
  size_t index[2] = {module.thread_local_id, 0};
  return {static_cast<unsigned char*>(__tls_get_addr(index)), module.thread_local_bytes};
#endif
}

void check_shared(const void* address, size_t bytes, const char* what, Site at) {
  Thread& thread = *running();
  const Block& block = *thread.owner;
  thread.at = at;
  if ((uintptr_t)address % bytes)
    fail(std::string(what) + ": the shared address is not aligned to " + std::to_string(bytes) + " bytes\n" +
         where(thread));
  if (!block.dynamic_shared.holds(address, bytes) && !block.static_shared.holds(address, bytes))
    fail(std::string(what) + ": the address is not in the block's shared memory\n" + where(thread));
}

}  // namespace cuemu
