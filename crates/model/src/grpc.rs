//! The status codes of gRPC, which runtimes, drivers and health services answer with.

use std::fmt;

macro_rules! codes {
    ($($name:ident = $number:literal => $text:literal,)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum GrpcCode { $($name = $number),* }
        impl GrpcCode {
            /// `None`: gRPC has no such code.
            pub fn of_number(number: i32) -> Option<Self> {
                match number { $($number => Some(GrpcCode::$name),)* _ => None }
            }
            /// The spelling of the Go library, which messages and metrics of a kubelet have.
            pub fn name(self) -> &'static str {
                match self { $(GrpcCode::$name => $text),* }
            }
        }
    };
}

codes!(
    Ok = 0 => "OK",
    Cancelled = 1 => "Canceled",
    Unknown = 2 => "Unknown",
    InvalidArgument = 3 => "InvalidArgument",
    DeadlineExceeded = 4 => "DeadlineExceeded",
    NotFound = 5 => "NotFound",
    AlreadyExists = 6 => "AlreadyExists",
    PermissionDenied = 7 => "PermissionDenied",
    ResourceExhausted = 8 => "ResourceExhausted",
    FailedPrecondition = 9 => "FailedPrecondition",
    Aborted = 10 => "Aborted",
    OutOfRange = 11 => "OutOfRange",
    Unimplemented = 12 => "Unimplemented",
    Internal = 13 => "Internal",
    Unavailable = 14 => "Unavailable",
    DataLoss = 15 => "DataLoss",
    Unauthenticated = 16 => "Unauthenticated",
);

impl GrpcCode {
    pub fn number(self) -> i32 {
        self as i32
    }
}

impl fmt::Display for GrpcCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_codes_belong_together() {
        for number in 0..=16 {
            assert_eq!(GrpcCode::of_number(number).map(GrpcCode::number), Some(number));
        }
        assert_eq!((GrpcCode::of_number(17), GrpcCode::of_number(-1)), (None, None));
        assert_eq!(GrpcCode::Cancelled.to_string(), "Canceled");
    }
}
