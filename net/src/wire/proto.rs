//! Messages and services, generated from `proto/`, and one message by hand.

#![allow(missing_docs, clippy::all, reason = "generated; the protos are the documentation")]

/// The service of existing clients.
#[cfg(feature = "server")]
pub mod logspec {
    tonic::include_proto!("logspec");
}

/// The native services.
pub mod v1 {
    use prost::bytes::{Buf, BufMut};
    use prost::encoding::{DecodeContext, WireType, message, skip_field};
    use prost::{DecodeError, Message};

    tonic::include_proto!("chiplog.v1");

    /// The most batches of an [`AppendTogetherRequest`].
    pub(crate) const BATCHES_MAX: usize = 256;

    /// The batches of a call, each with its log. Of a request that is received, at most one more than a call takes is kept, by which
    /// the call is refused: a batch of two bytes on the wire takes fifty times as much in memory, and the limits of memory count
    /// the bytes on the wire.
    ///
    /// ```
    /// use chiplog_net::wire::proto::v1::{AppendTogetherRequest, LogBatch};
    /// use prost::Message;
    /// let many = AppendTogetherRequest { appends: vec![LogBatch::default(); 1000] };
    /// let received = AppendTogetherRequest::decode(&many.encode_to_vec()[..])?;
    /// assert_eq!(received.appends.len(), 257);
    /// # Ok::<(), prost::DecodeError>(())
    /// ```
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct AppendTogetherRequest {
        pub appends: Vec<LogBatch>,
    }

    impl Message for AppendTogetherRequest {
        fn encode_raw(&self, buffer: &mut impl BufMut) {
            message::encode_repeated(1, &self.appends, buffer);
        }

        fn merge_field(
            &mut self,
            tag: u32,
            wire_type: WireType,
            buffer: &mut impl Buf,
            context: DecodeContext,
        ) -> Result<(), DecodeError> {
            match tag {
                1 if self.appends.len() <= BATCHES_MAX => {
                    message::merge_repeated(wire_type, &mut self.appends, buffer, context)
                }
                _ => skip_field(wire_type, tag, buffer, context),
            }
        }

        fn encoded_len(&self) -> usize {
            message::encoded_len_repeated(1, &self.appends)
        }

        fn clear(&mut self) {
            self.appends.clear();
        }
    }
}

/// All protos, compiled, for server reflection.
#[cfg(feature = "server")]
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
