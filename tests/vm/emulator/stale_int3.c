// SPDX-License-Identifier: GPL-2.0-only
/*
 * Does what an instruction in memory says where the emulator has run a breakpoint that is not there any more.
 *
 * The kernel switches a tracepoint by patching running code: it puts a breakpoint over the first byte, writes the rest,
 * and replaces the breakpoint last. It waits for all processors in between, so none can run the breakpoint afterwards.
 * An emulated one can. Before each write to code, QEMU throws its translations of that code away, and it writes after
 * that, with no lock held:
 *
 *	CPU 0, patching				CPU 1, running the code
 *	throws the translation away
 *						finds no translation
 *						translates the breakpoint
 *	replaces the breakpoint
 *	waits for CPU 1				answers
 *	forgets the breakpoint
 *						runs the translation: the kernel knows no such breakpoint and dies
 *
 * Only the last write can leave such a translation behind: a later write throws away what an earlier one has left.
 * For each such breakpoint, this module does what the kernel does for one that it knows. It never passes a breakpoint
 * that is in memory.
 *
 * To see it, switch /proc/sys/kernel/sched_schedstats on and off for a minute or two while pipes keep four processors
 * busy on a host that has two.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/init.h>
#include <linux/kdebug.h>
#include <linux/module.h>
#include <linux/printk.h>
#include <linux/ptrace.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <asm/text-patching.h>

/* The longest of those instructions */
#define STALE_CODE	5

static const u8 stale_nop2[] = { 0x66, 0x90 };
static const u8 stale_nop5[STALE_CODE] = { 0x0f, 0x1f, 0x44, 0x00, 0x00 };

static long stale_far_offset(const u8 *code)
{
	s32 offset;

	memcpy(&offset, code + 1, sizeof(offset));
	return offset;
}

/* Moves the registers on as the instruction at place would. Returns false for one that is never patched so. */
static bool stale_emulate(struct pt_regs *regs, unsigned long place, const u8 *code)
{
	if (code[0] == JMP32_INSN_OPCODE) {
		int3_emulate_jmp(regs, place + JMP32_INSN_SIZE + stale_far_offset(code));
	} else if (code[0] == JMP8_INSN_OPCODE) {
		int3_emulate_jmp(regs, place + JMP8_INSN_SIZE + (s8)code[1]);
	} else if (code[0] == CALL_INSN_OPCODE) {
		int3_emulate_push(regs, place + CALL_INSN_SIZE);
		int3_emulate_jmp(regs, place + CALL_INSN_SIZE + stale_far_offset(code));
	} else if (!memcmp(code, stale_nop2, sizeof(stale_nop2))) {
		int3_emulate_jmp(regs, place + sizeof(stale_nop2));
	} else if (!memcmp(code, stale_nop5, sizeof(stale_nop5))) {
		int3_emulate_jmp(regs, place + sizeof(stale_nop5));
	} else {
		return false;
	}
	return true;
}

/* Passes the breakpoint before regs->ip, unless it is in memory. */
static bool stale_pass(struct pt_regs *regs)
{
	unsigned long place = regs->ip - INT3_INSN_SIZE;
	u8 code[STALE_CODE];

	if (copy_from_kernel_nofault(code, (void *)place, sizeof(code)) || code[0] == INT3_INSN_OPCODE)
		return false;
	return stale_emulate(regs, place, code);
}

static int stale_died(struct notifier_block *block, unsigned long event, void *data)
{
	struct pt_regs *regs = ((struct die_args *)data)->regs;
	void *place = (void *)(regs->ip - INT3_INSN_SIZE);

	if (event != DIE_INT3 || user_mode(regs) || !stale_pass(regs))
		return NOTIFY_DONE;
	pr_info_ratelimited("passed a breakpoint that is gone from %pS\n", place);
	return NOTIFY_STOP;
}

static struct notifier_block stale_block = { .notifier_call = stale_died };

/* Whether a breakpoint over this instruction leads to target from its start, and pushes what a call does. */
static bool __init stale_leads(const u8 *code, long target, bool pushes)
{
	unsigned long stack[] = { 0, 0 }, place = (unsigned long)code;
	struct pt_regs regs = { .ip = place + INT3_INSN_SIZE, .sp = (unsigned long)&stack[1] };

	if (!stale_pass(&regs))
		return !target && regs.ip == place + INT3_INSN_SIZE;
	return target && regs.ip == place + target && regs.sp == (unsigned long)&stack[!pushes] &&
	       stack[0] == (pushes ? place + CALL_INSN_SIZE : 0);
}

static int __init stale_init(void)
{
	static const u8 forward[] = { JMP8_INSN_OPCODE, 0x10, 0, 0, 0 }, back[] = { JMP8_INSN_OPCODE, 0xf0, 0, 0, 0 };
	static const u8 far_back[] = { JMP32_INSN_OPCODE, 0x00, 0xff, 0xff, 0xff };
	static const u8 call[] = { CALL_INSN_OPCODE, 0x00, 0x01, 0x00, 0x00 };
	static const u8 nop2[] = { 0x66, 0x90, 0, 0, 0 };
	static const u8 still[] = { INT3_INSN_OPCODE, 0x90, 0, 0, 0 }, other[] = { 0x48, 0x89, 0xc3, 0, 0 };

	if (!stale_leads(forward, 0x12, false) || !stale_leads(back, -0xe, false) ||
	    !stale_leads(far_back, -0xfb, false) || !stale_leads(call, 0x105, true) ||
	    !stale_leads(nop2, 2, false) || !stale_leads(stale_nop5, 5, false) ||
	    !stale_leads(still, 0, false) || !stale_leads(other, 0, false))
		return -EINVAL;
	return register_die_notifier(&stale_block);
}

static void __exit stale_exit(void)
{
	unregister_die_notifier(&stale_block);
}

module_init(stale_init);
module_exit(stale_exit);
MODULE_DESCRIPTION("Passes breakpoints that only a translation of the emulator still contains");
MODULE_LICENSE("GPL");
