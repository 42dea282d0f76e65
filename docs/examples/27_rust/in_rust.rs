// Collectives of processes in Rust, with the standard library alone. The last one has an invalid operation.
use std::ffi::{c_char, c_void, CStr};
use std::marker::PhantomData;
use std::ptr::{null, null_mut};

#[repr(C)]
#[derive(Default)]
struct Array {
    size: usize,
    data: usize,
    dtype: i32,
    ndim: i32,
    device: [i32; 2],
    dims: [i64; 8],
}

#[link(name = "tutti_c")]
extern "C" {
    fn tutti_last_error() -> *const c_char;
    fn tutti_init(options: *const c_void, group: *mut *mut c_void) -> i32;
    fn tutti_group_rank(group: *const c_void, rank: *mut i32) -> i32;
    fn tutti_group_free(group: *mut c_void) -> i32;
    fn tutti_all_reduce(group: *mut c_void, i: *const Array, o: *const Array, op: i32,
                        options: *const c_void, work: *mut *mut c_void) -> i32;
    fn tutti_work_wait(work: *mut c_void) -> i32;
    fn tutti_work_free(work: *mut c_void) -> i32;
}
const F64: i32 = 12;
const SUM: i32 = 0;

fn check(status: i32) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    Err(unsafe { CStr::from_ptr(tutti_last_error()) }.to_string_lossy().into_owned())
}

fn view(values: &mut [f64]) -> Array {
    let mut array = Array { data: values.as_mut_ptr() as usize, dtype: F64, ndim: 1, ..Array::default() };
    array.size = std::mem::size_of::<Array>();
    array.dims[0] = values.len() as i64;
    array
}

/// A call that writes to the slice until it has ended. Dropping it waits, also when the stack unwinds.
struct Work<'a>(*mut c_void, PhantomData<&'a mut [f64]>);

impl Work<'_> {
    fn wait(&self) -> Result<(), String> {
        check(unsafe { tutti_work_wait(self.0) })
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        unsafe { tutti_work_free(self.0) };
    }
}

struct Group(*mut c_void);

impl Group {
    fn init() -> Result<Group, String> {
        let mut group = null_mut();
        check(unsafe { tutti_init(null(), &mut group) }).map(|()| Group(group))
    }
    fn rank(&self) -> Result<i32, String> {
        let mut rank = -1;
        check(unsafe { tutti_group_rank(self.0, &mut rank) }).map(|()| rank)
    }
    // Private: a Work that is forgotten (mem::forget) would leave the call writing to freed memory.
    fn start<'a>(&self, values: &'a mut [f64], op: i32) -> Result<Work<'a>, String> {
        let (array, mut work) = (view(values), null_mut());
        check(unsafe { tutti_all_reduce(self.0, &array, &array, op, null(), &mut work) })?;
        Ok(Work(work, PhantomData))
    }
    /// In place. `meanwhile` runs on this thread while the ranks reduce.
    fn all_reduce(&self, values: &mut [f64], op: i32, meanwhile: impl FnOnce()) -> Result<(), String> {
        let work = self.start(values, op)?;
        meanwhile();
        work.wait()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        unsafe { tutti_group_free(self.0) };
    }
}

fn main() -> Result<(), String> {
    let group = Group::init()?;
    let mut values = [group.rank()? as f64 + 1.0, 2.0];
    group.all_reduce(&mut values, SUM, || println!("computing"))?;
    println!("sum {values:?}");
    println!("{}", group.all_reduce(&mut values, 42, || ()).unwrap_err());
    Ok(())
}
