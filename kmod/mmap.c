// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: mappings
 *
 * A mapping of an rfs file is one of the lower file: the VMA gets the lower
 * file and a copy of the lower vm_ops in which only fault and map_pages are
 * ours. The lower file system does everything else, huge pages included.
 *
 * vm_private_data is a pin, which leads to our inode. The lower file was opened
 * for ours and pins the mount, and with it the copy and the inode: then the pin
 * is the inode's own, and the VMA needs neither open nor close, without which
 * the kernel joins VMAs again after they were split.
 *
 * A stacked file system below puts a file of its own into the VMA, which pins
 * nothing of ours. Then the pin belongs to the VMAs that were split from one,
 * and holds the lower file.
 */
#include <linux/file.h>
#include <linux/huge_mm.h>
#include "rfs.h"
#include "compat/ops.h"

/*
 * A page table covers 512 MiB with pages of 64 KiB: one fault maps no more than it
 * would with pages of 4 KiB.
 */
#define RFS_WINDOW min_t(unsigned long, PMD_SIZE, SZ_2M)

/* the kinds that report consumed ranges, hit or miss */
#define RFS_CONSUMING (BIT(RFS_EVENT_TOUCH) | BIT(RFS_EVENT_PROGRESS))

/* our copy of one set of vm_ops; one list per super block, hardly ever longer than two */
struct rfs_vm {
	struct vm_operations_struct ops;
	const struct vm_operations_struct *lower;
	bool shared;		/* the pin belongs to the VMAs, not to the inode */
	struct rfs_vm *next;
};

static struct rfs_vm *rfs_vm(const struct vm_area_struct *vma)
{
	return container_of(vma->vm_ops, struct rfs_vm, ops);
}

static const struct vm_operations_struct *rfs_lower_vm(const struct vm_area_struct *vma)
{
	return rfs_vm(vma)->lower;
}

static struct inode *rfs_vma_inode(const struct vm_area_struct *vma)
{
	const struct rfs_pin *pin = vma->vm_private_data;

	return pin->inode;
}

static void rfs_vma_open(struct vm_area_struct *vma)
{
	struct rfs_pin *pin = vma->vm_private_data;

	refcount_inc(&pin->vmas);
	if (rfs_lower_vm(vma)->open)
		rfs_lower_vm(vma)->open(vma);
}

static void rfs_vma_close(struct vm_area_struct *vma)
{
	struct rfs_pin *pin = vma->vm_private_data;

	if (rfs_lower_vm(vma)->close)
		rfs_lower_vm(vma)->close(vma);
	if (!refcount_dec_and_test(&pin->vmas))
		return;
	fput(pin->file);
	kfree(pin);
}

/* the range a fault on a cached page makes accessible, up to the next gap */
static void rfs_note_mapped(struct inode *inode, pgoff_t index, pgoff_t end, u32 kinds)
{
	struct address_space *mapping = rfs_mapping(inode);
	loff_t size = i_size_read(mapping->host);
	loff_t pos = (loff_t)index << PAGE_SHIFT;
	pgoff_t gap;

	if (pos >= size)
		return;
	end = min_t(pgoff_t, end, (size - 1) >> PAGE_SHIFT);
	gap = min(rfs_next_gap(mapping, index, end), end + 1);
	if (gap > index)
		rfs_note_done(inode, RFS_EV_MMAP, kinds, pos,
			      min_t(u64, (u64)(gap - index) << PAGE_SHIFT, size - pos));
}

/*
 * Widens a range of pages to what is mapped with it: a page that came with others is
 * mapped with those that are in the VMA and the page table, before it and after it. The
 * kernel may map fewer, and the next fault then reports the rest once more.
 */
static void rfs_mapped_range(struct vm_fault *vmf, struct address_space *mapping,
			     pgoff_t *first, pgoff_t *last)
{
	struct vm_area_struct *vma = vmf->vma;
	unsigned long table = vmf->address & PMD_MASK;
	pgoff_t from = linear_page_index(vma, max(table, vma->vm_start));
	pgoff_t to = linear_page_index(vma, min(table + PMD_SIZE, vma->vm_end)) - 1;
	pgoff_t unused;

	if (!pmd_trans_huge(*vmf->pmd) && !rfs_fills_table(vmf, from, to)) {
		rfs_mapped_with(mapping, *first, first, &unused);
		rfs_mapped_with(mapping, *last, &unused, last);
		from = max(from, *first);
		to = min(to, *last);
	}
	*first = from;
	*last = to;
}

static vm_fault_t rfs_fault(struct vm_fault *vmf)
{
	struct inode *inode = rfs_vma_inode(vmf->vma);
	u32 kinds = rfs_wanted(inode);
	pgoff_t first = vmf->pgoff;
	pgoff_t last = vmf->pgoff;
	vm_fault_t ret;

	/* a second try is for a page that the first has asked for */
	if (kinds && !(vmf->flags & FAULT_FLAG_TRIED))
		rfs_note_fault(inode, vmf->pgoff, kinds);
	ret = rfs_lower_vm(vmf->vma)->fault(vmf);
	if (!(kinds & RFS_CONSUMING) || !(ret & VM_FAULT_LOCKED))
		return ret;
	rfs_mapped_range(vmf, rfs_mapping(inode), &first, &last);
	if (first < vmf->pgoff)
		rfs_note_mapped(inode, first, vmf->pgoff - 1, kinds);
	if (last > vmf->pgoff)
		rfs_note_mapped(inode, vmf->pgoff + 1, last, kinds);
	return ret;
}

/*
 * The kernel maps what is cached within 64 KiB round a fault. A model is read
 * from end to end, so the first fault in a page table, which allocates it
 * anyway, maps all cached pages of the window, which is a table: 1/32 of the
 * faults. A later one maps up to the window's end if the file is being read
 * upwards. Downwards, the pages ahead are already mapped, and scanning them again
 * at each fault would cost a cold reader a quarter more.
 */
static void rfs_widen(struct vm_fault *vmf, struct inode *inode, pgoff_t *start, pgoff_t *end)
{
	struct rfs_inode *ri = rfs_i(inode);
	struct vm_area_struct *vma = vmf->vma;
	unsigned long window = vmf->address & ~(RFS_WINDOW - 1);
	unsigned long from = max(window, vma->vm_start);
	unsigned long to = min(window + RFS_WINDOW, vma->vm_end);
	/* a hint, shared by all readers of the file */
	bool upwards = vmf->pgoff > READ_ONCE(ri->last_mapped);

	WRITE_ONCE(ri->last_mapped, vmf->pgoff);
	/* random readers need no neighbours */
	if (vma->vm_flags & VM_RAND_READ)
		return;
	if (pmd_none(*vmf->pmd)) {
		*start = linear_page_index(vma, from);
		rfs_move_window(vmf, from);
	} else if (!upwards) {
		return;
	}
	*end = linear_page_index(vma, to - 1);
}

/*
 * A recorder needs an event for every page that will be read without a fault,
 * and for few others: no more is mapped than the kernel would map, and nothing
 * beyond a gap or before the page itself.
 *
 *   map:  |#######·####|  one fault maps and reports the pages before the gap,
 *                         the gap's fault only itself, the next one the pages after
 */
static void rfs_narrow(struct vm_fault *vmf, struct inode *inode, pgoff_t *start, pgoff_t *end)
{
	struct vm_area_struct *vma = vmf->vma;
	pgoff_t index = vmf->pgoff;
	pgoff_t gap = rfs_next_gap(rfs_mapping(inode), index, *end);

	*start = index;
	*end = gap > index ? min(*end, gap - 1) : index;
	rfs_move_window(vmf, vma->vm_start + ((index - vma->vm_pgoff) << PAGE_SHIFT));
}

vm_fault_t rfs_map_table(struct vm_fault *vmf, pgoff_t start, pgoff_t end)
{
	struct vm_area_struct *vma = vmf->vma;
	struct inode *inode = rfs_vma_inode(vma);
	u32 kinds = rfs_wanted(inode) & RFS_CONSUMING;
	pgoff_t first = vmf->pgoff;
	vm_fault_t ret;

	if (kinds & BIT(RFS_EVENT_TOUCH))
		rfs_narrow(vmf, inode, &start, &end);
	else
		rfs_widen(vmf, inode, &start, &end);
	ret = rfs_call_map_pages(rfs_lower_vm(vma), vmf, start, end);
	if (kinds) {
		rfs_mapped_range(vmf, rfs_mapping(inode), &first, &end);
		rfs_note_mapped(inode, first, end, kinds);
	}
	return ret;
}

static struct rfs_vm *rfs_vm_find(struct rfs_sb *rs, const struct vm_operations_struct *lower,
				  bool shared)
{
	struct rfs_vm *vm;

	/* pairs with the release in rfs_vm_get() */
	for (vm = smp_load_acquire(&rs->vms); vm; vm = vm->next)
		if (vm->lower == lower && vm->shared == shared)
			break;
	return vm;
}

static struct rfs_vm *rfs_vm_create(const struct vm_operations_struct *lower, bool shared)
{
	struct rfs_vm *vm = kzalloc(sizeof(*vm), GFP_KERNEL);

	if (!vm)
		return NULL;
	vm->ops = *lower;
	vm->ops.fault = rfs_fault;
	if (lower->map_pages)
		vm->ops.map_pages = rfs_map_pages;
	if (shared) {
		vm->ops.open = rfs_vma_open;
		vm->ops.close = rfs_vma_close;
	}
	vm->lower = lower;
	vm->shared = shared;
	return vm;
}

/* Returns our copy of these vm_ops, which lives as long as the super block. */
static struct rfs_vm *rfs_vm_get(struct rfs_sb *rs, const struct vm_operations_struct *lower,
				 bool shared)
{
	struct rfs_vm *vm = rfs_vm_find(rs, lower, shared);

	if (vm)
		return vm;
	mutex_lock(&rs->vm_lock);
	vm = rfs_vm_find(rs, lower, shared);
	if (vm)
		goto out;
	vm = rfs_vm_create(lower, shared);
	if (!vm)
		goto out;
	vm->next = rs->vms;
	/* pairs with the reader in rfs_vm_find() */
	smp_store_release(&rs->vms, vm);
out:
	mutex_unlock(&rs->vm_lock);
	return vm;
}

void rfs_vm_free(struct rfs_sb *rs)
{
	struct rfs_vm *vm, *next;

	for (vm = rs->vms; vm; vm = next) {
		next = vm->next;
		kfree(vm);
	}
}

/* Returns the pin that a first VMA has, or NULL. */
static struct rfs_pin *rfs_pin_create(struct inode *inode, struct file *lower)
{
	struct rfs_pin *pin = kmalloc(sizeof(*pin), GFP_KERNEL);

	if (!pin)
		return NULL;
	refcount_set(&pin->vmas, 1);
	pin->inode = inode;
	pin->file = get_file(lower);
	return pin;
}

int rfs_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct inode *inode = file_inode(file);
	struct rfs_sb *rs = rfs_sb(inode->i_sb);
	struct file *lower = rfs_lower_file(file);
	struct rfs_pin *pin = &rfs_i(inode)->pin;
	struct rfs_vm *vm;
	bool shared;
	int err;

	err = rfs_mmap_lower(file, lower, vma, rs->cred);
	if (err)
		return err;
	/* without faults or a place for us the mapping works, but causes no events */
	if (!vma->vm_ops || !vma->vm_ops->fault || vma->vm_private_data)
		return 0;
	shared = vma->vm_file != lower;
	vm = rfs_vm_get(rs, vma->vm_ops, shared);
	if (!vm)
		return 0;
	if (shared)
		pin = rfs_pin_create(inode, lower);
	if (!pin)
		return 0;
	vma->vm_private_data = pin;
	vma->vm_ops = &vm->ops;
	return 0;
}
