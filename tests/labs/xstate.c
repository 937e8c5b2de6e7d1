/* Preloaded into User-Mode Linux on processors with AMX. Linux 6.1's UML keeps too little of the extended registers of
   the processes that it runs, and the kernel refuses to set less than all of them ("ptrace set fp regs failed"). What
   is missing is left as it is. It is called on UML's small stacks, so it uses no library and hardly any stack. */
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define XSTATE 0x202 /* NT_X86_XSTATE */

static unsigned char all[16384] __attribute__((aligned(64)));

static long kernel(long request, long pid, void *address, void *data)
{
    long answer;
    register void *fourth __asm__("r10") = data;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"(SYS_ptrace), "D"(request), "S"(pid), "d"(address), "r"(fourth)
                     : "rcx", "r11", "memory");
    return answer;
}

long ptrace(enum __ptrace_request request, ...)
{
    va_list rest;
    va_start(rest, request);
    int pid = va_arg(rest, int);
    void *address = va_arg(rest, void *), *data = va_arg(rest, void *);
    va_end(rest);
    struct iovec whole = {all, sizeof all};
    int peeks = request >= PTRACE_PEEKTEXT && request <= PTRACE_PEEKUSER;
    long word = 0, answer;
    if (request == PTRACE_SETREGSET && (unsigned long)address == XSTATE) {
        struct iovec *part = data;
        if (kernel(PTRACE_GETREGSET, pid, address, &whole) == 0 && whole.iov_len > part->iov_len) {
            memcpy(all, part->iov_base, part->iov_len);
            data = &whole;
        }
    }
    answer = kernel(request, pid, address, peeks ? &word : data);
    if (answer < 0) {
        errno = (int)-answer;
        return -1;
    }
    if (peeks)
        errno = 0;
    return peeks ? word : answer;
}
